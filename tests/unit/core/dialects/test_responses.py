"""The Responses dialect: what is its own."""

import json
from typing import Any

import pytest

from loopguard.core import sse
from loopguard.core.dialects import responses
from loopguard.core.events import (
    ArgumentsDelta,
    CallBegan,
    Finish,
    GenerationId,
    OtherDelta,
    Parsed,
    ReasoningDelta,
    Seen,
    TextDelta,
    UpstreamFault,
    Usage,
)
from loopguard.core.retry import Refused
from loopguard.errors import Draining, InvalidRequest, ModelResponseLoop
from tests.fake_openrouter import Message, Reply, ToolCall
from tests.fake_openrouter import responses as wire
from tests.unit.core.dialects.wires import blocks, hold

ORIGIN = GenerationId("gen-1", "m", "P")


def payload(kind: str, **fields: Any) -> bytes:
    return json.dumps({"type": f"response.{kind}", **fields}).encode()


def events(*data: bytes) -> list[Any]:
    parser = responses.Parser()
    return [event for it in data for event in parser.parse(it).events]


def sent(told: bytes) -> list[dict[str, Any]]:
    return [json.loads(block.data or b"") for block in blocks(told)]


def completed(*output: dict[str, Any], **fields: Any) -> bytes:
    return payload("completed", response={"id": "gen-1", "output": output, **fields})


def test_a_held_stream_is_numbered_without_a_gap() -> None:
    """The events of a held stream are numbered from the first one's number on, one by one."""
    reply = Reply(Message("word " * 100, tool_calls=(ToolCall("f", "{}", "1"),)), delta_chars=3)
    again = sent(b"".join(hold(responses, wire.stream(reply, openai=True)).stream()))
    assert [event["sequence_number"] for event in again] == list(range(len(again)))
    assert again[-1]["response"] == wire.whole(reply)


def test_resumed_streams_keep_their_first_number() -> None:
    """A stream that begins later than at 0 is numbered from there, and one without numbers not."""
    numbered = [payload("in_progress", sequence_number=7), payload("created", sequence_number=9)]
    bare = [payload("in_progress")]
    for data, numbers in ((numbered, [7, 8]), (bare, [None])):
        stream = b"".join(map(sse.encode, data))
        again = sent(b"".join(hold(responses, stream).stream()))
        assert [event.get("sequence_number") for event in again] == numbers


def test_openais_own_framing() -> None:
    """Event lines are kept, and the end of such a stream is its terminal event."""
    stream = wire.stream(Reply("Hello there."), openai=True)
    held = hold(responses, stream)
    assert b"[DONE]" not in stream
    assert all(
        block.event == json.loads(block.data or b"")["type"].encode()
        for block in blocks(b"".join(held.stream()))
    )
    assert held.whole() == wire.whole(Reply("Hello there."))


def test_keepalives_are_not_held() -> None:
    """What only keeps the line open is no part of a held reply, and no progress."""
    data = b'{"type":"keepalive","sequence_number":3}'
    assert events(data) == []
    assert list(hold(responses, sse.encode(data)).stream()) == []


@pytest.mark.parametrize(
    ("kind", "event"),
    [
        ("output_text", TextDelta("x")),
        ("refusal", TextDelta("x")),
        ("audio.transcript", TextDelta("x")),
        ("something_new", TextDelta("x")),
        ("reasoning_text", ReasoningDelta("x")),
        ("reasoning_summary_text", ReasoningDelta("x")),
        ("function_call_arguments", ArgumentsDelta("x", call=2)),
        ("custom_tool_call_input", ArgumentsDelta("x", call=2)),
        ("mcp_call_arguments", ArgumentsDelta("x", call=2)),
        ("code_interpreter_call_code", ArgumentsDelta("x", call=2)),
        ("apply_patch_call_operation_diff", ArgumentsDelta("x", call=2)),
        ("shell_call_command", ArgumentsDelta("x", call=2)),
        ("audio", OtherDelta()),
    ],
)
def test_deltas_go_to_their_channel(kind: str, event: Any) -> None:
    """Every kind of delta is watched on a channel, one that is not known yet as content."""
    assert events(payload(f"{kind}.delta", output_index=2, delta="x")) == [event]
    assert events(payload(f"{kind}.delta", output_index=2, delta="")) in ([], [OtherDelta()])


def test_deltas_that_are_no_text() -> None:
    """What a tool printed is progress, and not watched."""
    delta = {"stdout": "x", "stderr": ""}
    assert events(payload("shell_call_output_content.delta", delta=delta)) == [OtherDelta()]


def test_what_comes_without_deltas_is_read_from_its_end() -> None:
    """Text that no delta brought is read from the first event that has it, and once."""
    call = {"type": "function_call", "name": "f", "arguments": '{"a":1}'}
    message = {"type": "message", "content": [{"text": "abc"}, {"refusal": "no"}, {"n": 1}]}
    thought = {"type": "reasoning", "summary": [{"text": "hm"}], "encrypted_content": "A"}
    assert events(
        payload("output_text.done", output_index=0, text="abc"),
        payload("output_item.done", output_index=0, item=message),
        payload("output_item.done", output_index=1, item=call),
        payload("function_call_arguments.done", output_index=1, arguments='{"a":1}'),
        payload("output_item.done", output_index=2, item=thought),
        payload("custom_tool_call_input.done", output_index=3, input=""),
        completed(message, call, thought),
    ) == [
        TextDelta("abc"),
        CallBegan("f", call=1),
        ArgumentsDelta('{"a":1}', call=1),
        ReasoningDelta("hm"),
        OtherDelta(),
        GenerationId("gen-1", None, None),
        Finish("completed"),
    ]


def test_a_reply_that_comes_in_its_last_event_alone() -> None:
    """A reply that nothing announced is read from the terminal event."""
    call = {"type": "custom_tool_call", "name": "f", "input": "x y"}
    usage = {"input_tokens": 3, "output_tokens": 4, "cost": None}
    assert events(completed({"content": [{"text": "abc"}]}, call, usage=usage))[1:] == [
        TextDelta("abc"),
        CallBegan("f", call=1),
        ArgumentsDelta("x y", call=1),
        Usage(3, 4, None),
        Finish("completed"),
    ]


def test_calls_begin_once_and_searches_are_no_calls() -> None:
    """A call begins when its item is added, once; an item without a name is other progress."""
    call = {"type": "function_call", "name": "f", "arguments": ""}
    search = {"type": "web_search_call"}
    assert events(
        payload("output_item.added", output_index=4, item=call),
        payload("output_item.added", output_index=5, item=search),
        payload("output_item.added", output_index=6, item={"type": "message", "content": []}),
        payload("web_search_call.searching", output_index=5),
        payload("image_generation_call.partial_image", partial_image_b64="AAAA"),
        payload("output_item.done", output_index=4, item=call),
    ) == [CallBegan("f", call=4), OtherDelta(), OtherDelta(), OtherDelta()]


@pytest.mark.parametrize(
    ("data", "status", "message"),
    [
        (payload("failed", response={"error": {"code": "server_error", "message": "a"}}), 502, "a"),
        (payload("failed", error_type="rate_limit_exceeded", response={}), 429, "failed"),
        (payload("error", error={"code": 503, "message": "b"}), 503, "b"),
        (b'{"type":"error","code":"invalid_prompt","message":"c","param":null}', 400, "c"),
        (b'{"type":"error","error":{"code":"rate_limit_exceeded","message":"d"}}', 429, "d"),
        (b'{"error":{"code":"image_too_large","message":"e"}}', 400, "e"),
        (b'{"error":"f"}', 502, "f"),
    ],
)
def test_errors_inside_a_stream(data: bytes, status: int, message: str) -> None:
    """Every shape of an error inside a stream is a fault with the status it stands for."""
    (fault,) = [event for event in events(data) if isinstance(event, UpstreamFault)]
    assert fault.status == status
    assert message in str(fault.error["message"])
    assert json.loads(responses.fault_body(fault))["error"] == fault.error


def test_an_incomplete_response_has_come_to_its_end() -> None:
    """A response that reached its cap is a reply, and its object is the whole one."""
    details = {"incomplete_details": {"reason": "max_output_tokens"}, "output": [], "id": "x"}
    data = payload("incomplete", response=details)
    assert events(data)[-1] == Finish("max_output_tokens")
    assert hold(responses, sse.encode(data)).whole() == details


@pytest.mark.parametrize(
    "data",
    [
        b"[DONE]",
        payload("completed"),
        payload("completed", response={"output": {}}),
        payload("completed", response={"output": [], "usage": 7}),
        payload("created", response=7),
        payload("output_text.delta", delta="x", output_index="0"),
        payload("output_text.delta", delta="x", logprobs=7),
        payload("output_item.added"),
        payload("output_item.done", item=7),
        payload("output_item.done", item={"type": "message", "content": "x"}),
        b'{"type":7}',
    ],
)
def test_what_is_no_event_is_refused(data: bytes) -> None:
    """What is not of the wire, or ends the stream before its response, raises ValueError."""
    with pytest.raises(ValueError):  # noqa: PT011 - the attempt knows no more either
        responses.Parser().parse(data)


def test_a_loop_fails_in_the_form_that_codex_does_not_retry() -> None:
    """Where nothing was seen, created comes first; failed carries `invalid_prompt` and no item."""
    error = ModelResponseLoop("it looped", details={"attempts": 4})
    told = responses.error_event(error, Seen(ORIGIN, 7, None))
    created, failed = sent(told)
    assert [block.event for block in blocks(told)] == [b"response.created", b"response.failed"]
    assert (created["type"], created["response"]["status"]) == ("response.created", "in_progress")
    assert failed["response"] == created["response"] | {
        "status": "failed",
        "error": {"code": "invalid_prompt", "message": "model_response_loop: it looped"},
    }
    assert failed["response"]["output"] == []
    assert (failed["error_type"], failed["attempts"]) == ("model_response_loop", 4)
    assert [created["sequence_number"], failed["sequence_number"]] == [0, 1]


def test_a_failure_continues_what_was_seen() -> None:
    """After part of a reply the failure alone comes, under the next number."""
    for last, number in (({"sequence_number": 41}, 42), ({}, 0)):
        (failed,) = sent(responses.error_event(Draining("bye"), Seen(ORIGIN, 7, last)))
        assert failed["sequence_number"] == number
        assert failed["response"]["id"] == "gen-1"
        assert failed["response"]["error"]["code"] == "server_error"


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (429, b"<html>", "rate_limit_exceeded"),
        (503, b'{"error":{"message":"x","code":503}}', "server_error"),
        (
            400,
            b'{"error":{"message":"x","code":"context_length_exceeded"}}',
            "context_length_exceeded",
        ),
    ],
)
def test_the_upstreams_refusal_in_a_stream(status: int, body: bytes, code: str) -> None:
    """The upstream's own error keeps its word, and gets one where it has a number."""
    *_, failed = sent(responses.refusal_event(Refused(status, body), Seen(ORIGIN, 7, None)))
    assert failed["response"]["error"]["code"] == code


def test_the_body_of_an_error_has_openrouters_shape() -> None:
    """An answer that is an error has a word for its code, and metadata beside it."""
    told = json.loads(responses.error_body(InvalidRequest("no model")))
    assert told["error"]["code"] == "invalid_prompt"
    assert told["metadata"] == {"error_type": "invalid_request"}


def test_parsed_is_what_the_protocol_of_dialects_says() -> None:
    """No event of this wire is there for its usage alone."""
    assert responses.Parser().parse(payload("debug")) == Parsed([], {"type": "response.debug"})
