"""The chat dialect: read, hold, assemble, fail."""

import json
from typing import Any

import pytest

from loopguard.core import sse
from loopguard.core.dialects import chat, runs
from loopguard.core.events import (
    ArgumentsDelta,
    CallBegan,
    Done,
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
from loopguard.errors import ModelResponseLoop, UpstreamUnusable
from tests.fake_openrouter import Message, Reply, fault


def data_lines(stream: bytes) -> list[bytes]:
    return [block.data for block in sse.Decoder(1 << 24).feed(stream) if block.data is not None]


def hold(lines: list[bytes]) -> chat.Held:
    parser, held = chat.Parser(), chat.Held()
    for line in lines:
        held.add(sse.Block(b"", line), parser.parse(line))
    return held


def chunk(delta: Any = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": None}
    return json.dumps({"id": "gen-1", "model": "m", "choices": [choice]} | more).encode()


def events(*lines: bytes) -> list[Any]:
    parser = chat.Parser()
    return [event for line in lines for event in parser.parse(line).events]


def test_null_takes_nothing_from_a_reasoning_detail() -> None:
    """A field of a reasoning detail that is null in a later piece keeps the value it had."""
    pieces = [
        {"type": "reasoning.text", "text": "I ", "signature": "sig"},
        {"type": "reasoning.text", "text": "see.", "signature": None},
    ]
    lines = [chunk({"reasoning_details": [piece]}) for piece in pieces]
    message = hold(lines).whole()["choices"][0]["message"]
    assert message["reasoning_details"] == [
        {"type": "reasoning.text", "text": "I see.", "signature": "sig"}
    ]


def test_interleaved_choices_are_held_as_small() -> None:
    """Choices whose deltas take turns are kept as small as one."""
    text = "A word and another. " * 1000
    reply = Reply(choices=(Message(text), Message(text)), delta_chars=4)
    assert hold(data_lines(reply.stream())).size_bytes < 3 * len(text)


def test_running_clock_does_not_keep_chunks_apart() -> None:
    """Chunks whose `created` runs are merged, and the first one's stands."""
    lines = [chunk({"content": "x"}, created=number) for number in range(100)]
    (event,) = data_lines(b"".join(hold(lines).stream()))
    assert json.loads(event)["created"] == 0
    assert json.loads(event)["choices"][0]["delta"]["content"] == "x" * 100


def test_halves_of_an_emoji_are_joined() -> None:
    """An emoji cut in two escapes, in a frame that orjson refuses as well, is held and whole."""
    first = b'{"user":"\\ud83d","choices":[{"index":0,"delta":{"content":"\\ud83d"}}]}'
    second = first.replace(b'"content":"\\ud83d"', b'"content":"\\ude00"')
    (event,) = data_lines(b"".join(hold([first, second]).stream()))
    assert json.loads(event)["choices"][0]["delta"]["content"] == "😀"


def test_unknown_keys_arrive() -> None:
    """Keys that no rule names are in the held stream and in the whole reply."""
    lines = [
        chunk({"content": "a", "mood": "calm"}, region="eu"),
        chunk({"content": "b", "mood": "calm"}, region="eu", extra=None),
        b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop","stop_reason":7}]}',
    ]
    whole = hold(lines).whole()
    assert (whole["region"], whole["extra"]) == ("eu", None)
    assert whole["choices"][0]["stop_reason"] == 7
    assert whole["choices"][0]["message"]["mood"] == "calm"
    assert whole["choices"][0]["message"]["content"] == "ab"


def test_audio_is_joined() -> None:
    """Audio arrives in pieces of its data and transcript, and what is spoken is read."""
    lines = [
        chunk({"audio": {"id": "a1", "transcript": "Good "}}),
        chunk({"audio": {"data": "AAAA", "transcript": "day"}}),
        chunk({"audio": {"data": "BBBB", "expires_at": 9, "id": None}}),
    ]
    read = events(*lines)[1:]
    assert read == [TextDelta("Good "), TextDelta("day"), OtherDelta()]
    assert hold(lines).whole()["choices"][0]["message"]["audio"] == {
        "id": "a1",
        "transcript": "Good day",
        "data": "AAAABBBB",
        "expires_at": 9,
    }


def test_calls_without_an_index() -> None:
    """A whole call without an index is a call of its own; a fragment belongs to the last."""
    call = {"id": "c1", "function": {"name": "f", "arguments": "{"}}
    lines = [
        chunk({"tool_calls": [call]}),
        chunk({"tool_calls": [{"function": {"arguments": "}"}}]}),
        chunk({"tool_calls": [call | {"id": "c2"}, {"function": {"arguments": "]"}}]}),
    ]
    calls = hold(lines).whole()["choices"][0]["message"]["tool_calls"]
    assert [(call["id"], call["function"]["arguments"]) for call in calls] == [
        ("c1", "{}"),
        ("c2", "{]"),
    ]


def test_the_older_form_of_a_call_is_joined() -> None:
    """A `function_call` arrives in pieces of its arguments."""
    lines = [
        chunk({"function_call": {"name": "g", "arguments": '{"a'}}),
        chunk({"function_call": {"arguments": '":1}'}}),
    ]
    message = hold(lines).whole()["choices"][0]["message"]
    assert message["function_call"] == {"name": "g", "arguments": '{"a":1}'}


def test_error_after_content_is_the_choices() -> None:
    """An error that came after part of a reply stands in the choice, as the upstream writes it."""
    error = {"code": 400, "message": "Token limit reached"}
    whole = hold(data_lines(Reply("part", fault=error).stream())[:-1]).whole()
    assert whole["choices"][0]["finish_reason"] == "error"
    assert whole["choices"][0]["error"] == error
    assert whole["choices"][0]["message"]["content"] == "part"


def test_debug_is_not_part_of_the_reply() -> None:
    """What was echoed for debugging is not in the whole reply."""
    assert (
        "debug" not in hold([b'{"choices":[],"debug":{"body":1}}', chunk({"content": "a"})]).whole()
    )


def test_events_of_a_stream() -> None:
    """A stream is read into its generation, deltas, finish, usage and sentinel, each once."""
    lines = data_lines(Reply(Message("ab", reasoning="cd"), delta_chars=2).stream("gen-1"))
    assert events(*lines) == [
        GenerationId("gen-1", "openai/gpt-4o-mini", "OpenAI"),
        ReasoningDelta("cd"),
        TextDelta("ab"),
        Finish("stop"),
        Usage(254, 500, 0.008262),
        Done(),
    ]


def test_other_channels() -> None:
    """Arguments, refusals and reasoning under any of its names are read as text."""
    assert events(
        chunk({"tool_calls": [{"index": 1, "id": "c", "function": {"name": "f"}}]}),
        chunk({"tool_calls": [{"index": 1, "function": {"arguments": ""}}]}),
        chunk({"tool_calls": [{"index": 1, "function": {"arguments": '{"a"'}}]}),
        chunk({"refusal": "No."}),
        chunk({"reasoning_content": "Hm."}),
        chunk({"reasoning_details": [{"type": "reasoning.summary", "summary": "Ah."}]}),
        chunk({"reasoning_details": [{"type": "reasoning.encrypted", "data": "A"}]}),
        chunk({"reasoning_details": [{"type": "reasoning.text", "text": "", "signature": ""}]}),
        chunk({"content": "", "reasoning": None}),
        chunk({"function_call": {"name": "g", "arguments": ""}}),
        chunk({"function_call": {"arguments": "{}"}}),
    )[1:] == [
        CallBegan("f", 0, 1),
        ArgumentsDelta('{"a"', 0, 1),
        TextDelta("No."),
        ReasoningDelta("Hm."),
        ReasoningDelta("Ah."),
        OtherDelta(),
        CallBegan("g"),
        ArgumentsDelta("{}"),
    ]


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (fault(429, "slow down"), 429),
        (fault("server_error", "odd"), 502),
        (fault(7, "no status"), 502),
        (fault(503, "overloaded", choices=False), 503),
        (sse.encode(b'{"error":"in words","choices":[]}'), 502),
        (sse.encode(b'{"choices":[{"index":0,"delta":{},"finish_reason":"error"}]}'), 502),
        (sse.encode(b'{"choices":[{"delta":{},"error":{"code":504,"message":"x"}}]}'), 504),
    ],
)
def test_errors_inside_a_stream(line: bytes, status: int) -> None:
    """Every recorded shape of an error inside a stream is a fault with the status it stands for."""
    (event,) = [event for event in events(*data_lines(line)) if isinstance(event, UpstreamFault)]
    assert event.status == status
    assert "message" in json.loads(chat.fault_body(event))["error"]


@pytest.mark.parametrize(
    "line",
    [
        b"not json",
        b"[1]",
        b'{"choices":7}',
        b'{"choices":[7]}',
        b'{"choices":[{"delta":7}]}',
        b'{"choices":[{"index":"x","delta":{"content":"a"}}]}',
        b'{"choices":[{"delta":{"content":["a"]}}]}',
        b'{"choices":[{"delta":{"tool_calls":[{"function":7}]}}]}',
        b'{"choices":[{"delta":{"reasoning_details":[7]}}]}',
        b'{"choices":[{"delta":{"reasoning":"a","reasoning_details":[{"text":{}}]}}]}',
        b'{"choices":[{"delta":{"annotations":{}}}]}',
        b'{"choices":[{"delta":{"audio":"x"}}]}',
        b'{"choices":[{"delta":{"audio":{"transcript":7}}}]}',
        b'{"choices":[{"delta":{},"logprobs":[1]}]}',
        b'{"choices":[],"usage":7}',
    ],
)
def test_what_is_no_chunk_is_refused(line: bytes) -> None:
    """A data line that is neither the sentinel nor a chunk raises ValueError."""
    with pytest.raises(ValueError):  # noqa: PT011 - the attempt knows no more either
        chat.Parser().parse(line)


def test_error_event_is_the_one_that_clients_take_as_a_failure() -> None:
    """The event that fails a stream has the upstream's shape, code 400 and nothing after it."""
    error = ModelResponseLoop("it looped", details={"attempts": 4})
    (line,) = data_lines(chat.error_event(error, Seen(GenerationId("gen-1", "m", "P"), 7, None)))
    assert json.loads(line) == {
        "id": "gen-1",
        "object": "chat.completion.chunk",
        "created": 7,
        "model": "m",
        "provider": "P",
        "error": {
            "message": "it looped",
            "code": 400,
            "type": "model_response_loop",
            "metadata": {"error_type": "model_response_loop", "attempts": 4},
        },
    }


def test_error_body_has_the_status_as_its_code() -> None:
    """The body of an answer that is an error repeats the answer's status."""
    assert json.loads(chat.error_body(UpstreamUnusable("gone")))["error"]["code"] == 502


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error":{"message":"busy","code":503}}', "busy"),
        (b"<html>", "status 503"),
        (b"{}", "503"),
    ],
)
def test_refusal_inside_a_stream(body: bytes, message: str) -> None:
    """The upstream's refusal, told inside a stream, is its own error where that can be read."""
    event = chat.refusal_event(Refused(503, body), Seen(GenerationId("x", None, None), 7, None))
    (line,) = data_lines(event)
    error = json.loads(line)["error"]
    assert error["code"] == 503
    assert message in error["message"]


def test_finish_event_looks_like_a_cap() -> None:
    """A live reply that is finished instead of failed ends in `length` and the sentinel."""
    line, sentinel = data_lines(chat.finish_event(Seen(GenerationId("gen-1", None, None), 7, None)))
    assert json.loads(line)["choices"][0]["finish_reason"] == "length"
    assert sentinel == runs.SENTINEL


def test_parsed_is_what_the_protocol_of_dialects_says() -> None:
    """The sentinel has no chunk, and a usage chunk without choices says so."""
    parser = chat.Parser()
    assert parser.parse(runs.SENTINEL) == Parsed([Done()], None)
    assert parser.parse(b'{"choices":[],"usage":{"prompt_tokens":1}}').usage_only


def test_ready_verdict_is_the_finish() -> None:
    """A provider's own word for a loop is the finish, under whichever name it comes."""
    choice = {"index": 0, "delta": {}, "finish_reason": "stop"}
    for name in ("finish_reason", "native_finish_reason", "stop_reason"):
        line = json.dumps({"choices": [choice | {name: "repetition_detected"}]}).encode()
        assert events(line) == [Finish("repetition_detected")]


def test_error_without_choices_after_content_fails_every_choice() -> None:
    """An error that names no choice, after part of a reply, stands in every choice."""
    error = {"code": 502, "message": "overloaded"}
    lines = [chunk({"content": "part"}), json.dumps({"choices": [], "error": error}).encode()]
    (choice,) = hold(lines).whole()["choices"]
    assert (choice["finish_reason"], choice["error"]) == ("error", error)
