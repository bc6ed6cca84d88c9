"""The Messages dialect: what is its own."""

import json
from typing import Any

import pytest

from loopguard.core import sse
from loopguard.core.dialects import messages
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
from loopguard.errors import Draining, InvalidRequest, ModelResponseLoop, UpstreamTimeout
from tests.fake_openrouter import Reply
from tests.fake_openrouter import messages as wire
from tests.unit.core.dialects.wires import blocks, hold

STARTED = {"id": "msg_1", "model": "m", "role": "assistant", "content": [], "usage": {}}


def payload(kind: str, **fields: Any) -> bytes:
    return json.dumps({"type": kind, **fields}).encode()


START = payload("message_start", message=STARTED)
STOP = payload("message_stop")


def begin(block: dict[str, Any], index: int = 0) -> bytes:
    return payload("content_block_start", index=index, content_block=block)


def delta(index: int = 0, **fields: Any) -> bytes:
    return payload("content_block_delta", index=index, delta=fields)


def events(*data: bytes) -> list[Any]:
    parser = messages.Parser()
    return [event for it in data for event in parser.parse(it).events]


def whole(*data: bytes) -> dict[str, Any]:
    return hold(messages, b"".join(map(sse.encode, (START, *data)))).whole()


def test_events_of_a_stream() -> None:
    """A stream is read into its model, deltas, counts and stop reason, each once."""
    usage = {"input_tokens": 1, "cache_read_input_tokens": 20, "cache_creation_input_tokens": 300}
    ended = {"stop_reason": "end_turn"}
    assert events(
        payload("message_start", message=STARTED | {"usage": usage, "provider": "P"}),
        begin({"type": "text", "text": ""}),
        payload("ping"),
        delta(type="text_delta", text="Hi"),
        delta(type="text_delta", text=""),
        payload("content_block_stop", index=0),
        payload("message_delta", delta=ended, usage={"output_tokens": 7, "input_tokens": None}),
        STOP,
        payload("something_new"),
    ) == [
        GenerationId(None, "m", "P"),
        Usage(321, 0, None),
        TextDelta("Hi"),
        Usage(321, 7, None),
        Finish("end_turn"),
    ]


def test_other_channels() -> None:
    """Thinking, arguments and summaries are text; signatures, blobs and citations are not."""
    assert events(
        START,
        begin({"type": "thinking", "thinking": "", "signature": ""}),
        delta(type="thinking_delta", thinking="Hm."),
        delta(type="signature_delta", signature="c2ln"),
        begin({"type": "tool_use", "id": "t", "name": "f", "input": {}}, 1),
        delta(1, type="input_json_delta", partial_json=""),
        delta(1, type="input_json_delta", partial_json='{"a'),
        begin({"type": "redacted_thinking", "data": "A"}, 2),
        begin({"type": "compaction", "content": None}, 3),
        delta(3, type="compaction_delta", content="In short."),
        delta(3, type="citations_delta", citation={}),
    )[2:] == [
        ReasoningDelta("Hm."),
        OtherDelta(),
        CallBegan("f", call=1),
        ArgumentsDelta('{"a', call=1),
        OtherDelta(),
        OtherDelta(),
        TextDelta("In short."),
        OtherDelta(),
    ]


def test_blocks_that_come_whole_are_read() -> None:
    """A provider that puts a text into a block's start is watched as well."""
    assert events(
        START,
        begin({"type": "text", "text": "Hi", "citations": [{}]}),
        begin({"type": "thinking", "thinking": "Hm."}, 1),
        begin({"type": "server_tool_use", "name": "f", "input": {"a": 1}}, 2),
    )[2:] == [
        TextDelta("Hi"),
        OtherDelta(),
        ReasoningDelta("Hm."),
        CallBegan("f", call=2),
        ArgumentsDelta('{"a":1}', call=2),
    ]


def test_pings_are_neither_held_nor_part_of_the_reply() -> None:
    """A ping says nothing, so that the last chunk a caller has seen is one of the reply."""
    assert messages.Parser().parse(payload("ping")) == Parsed([], None)
    held = b"".join(hold(messages, wire.stream(Reply("Hi"))).stream())
    assert b"ping" in wire.stream(Reply("Hi"))
    assert b"ping" not in held


def test_blocks_are_assembled() -> None:
    """Text, a summary, citations and what is not known yet grow in the block that began them."""
    content = whole(
        begin({"type": "text", "text": "A", "citations": None}),
        delta(type="citations_delta", citation={"n": 1}),
        delta(type="text_delta", text=" b"),
        delta(type="text_delta", text=" c"),
        delta(type="citations_delta", citation={"n": 2}),
        begin({"type": "compaction", "content": None}, 1),
        delta(1, type="compaction_delta", content="short", encrypted=None, level=3),
        STOP,
    )["content"]
    assert content == [
        {"type": "text", "text": "A b c", "citations": [{"n": 1}, {"n": 2}]},
        {"type": "compaction", "content": "short", "level": 3},
    ]


def test_arguments_cut_by_a_cap_leave_the_call_without_input() -> None:
    """A call whose arguments are no JSON keeps the input that its start brought."""
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    cut = delta(type="input_json_delta", partial_json='{"path": "a')
    assert whole(begin(call), cut, STOP)["content"] == [call]


def test_what_the_ending_brings_is_the_messages() -> None:
    """Counts, stop reason, container and what stands beside them are the whole message's."""
    started = payload(
        "message_start", message=STARTED | {"usage": {"input_tokens": 1, "tier": "s"}}
    )
    ended = payload(
        "message_delta",
        delta={"stop_reason": "tool_use", "container": {"id": "c"}},
        usage={"input_tokens": 5, "output_tokens": 7, "tier": None},
        context_management={"applied_edits": []},
    )
    stop = payload("message_stop", openrouter_metadata={"a": 1})
    message = hold(messages, b"".join(map(sse.encode, (started, ended, stop)))).whole()
    assert message == STARTED | {
        "stop_reason": "tool_use",
        "container": {"id": "c"},
        "context_management": {"applied_edits": []},
        "openrouter_metadata": {"a": 1},
        "usage": {"input_tokens": 5, "output_tokens": 7, "tier": "s"},
    }


def test_a_message_may_end_without_a_reason() -> None:
    """The event that stops a message ends the reply where no stop reason came before it."""
    assert events(START, STOP)[-1] == Finish("message_stop")
    assert "usage" in whole(STOP) or whole(STOP)["content"] == []


def test_a_sentinel_is_taken_after_the_end() -> None:
    """OpenRouter's clients know a sentinel on this wire too; it is kept."""
    stream = b"".join(map(sse.encode, (START, STOP, b"[DONE]")))
    assert b"".join(hold(messages, stream).stream()) == stream


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ({"type": "overloaded_error", "message": "x"}, 529),
        ({"type": "api_error", "message": "x", "error_type": "rate_limit_exceeded"}, 429),
        ({"code": 404, "message": "x"}, 404),
        ({"type": "who_knows", "message": "x"}, 502),
    ],
)
def test_errors_inside_a_stream(error: dict[str, Any], status: int) -> None:
    """An error event is a fault with the status it stands for, and has a body of the wire."""
    (fault,) = events(payload("error", error=error))
    assert fault == UpstreamFault(status, error)
    told = json.loads(messages.fault_body(fault))
    assert (told["type"], told["error"]["message"]) == ("error", "x")
    assert told["error"]["type"].endswith("_error") or told["error"]["type"] == "who_knows"


def test_an_error_without_an_object() -> None:
    """An error event of another shape is a fault all the same."""
    (fault,) = events(payload("error", message="x"))
    assert fault.error["message"] == "x"


@pytest.mark.parametrize(
    "data",
    [
        [b"[DONE]"],
        [START, b"[DONE]"],
        [STOP],
        [payload("message_start")],
        [payload("message_start", message=STARTED | {"usage": 7})],
        [START, delta(type="text_delta", text="x")],
        [START, begin({"type": "text", "text": 7})],
        [START, begin({"type": "text", "citations": 7})],
        [START, begin({"type": "text"}), delta(type="text_delta", text=7)],
        [START, payload("content_block_start", index="0", content_block={})],
        [START, payload("content_block_start", index=0)],
        [START, payload("message_delta", delta=7)],
    ],
)
def test_what_is_no_event_is_refused(data: list[bytes]) -> None:
    """What is not of the wire, or comes out of its order, raises ValueError."""
    with pytest.raises(ValueError):  # noqa: PT011 - the attempt knows no more either
        events(*data)


def test_error_event_is_the_one_that_anthropics_client_raises_for() -> None:
    """The event that fails a stream is named `error`, since that client reads the event line."""
    (block,) = blocks(messages.error_event(ModelResponseLoop("it looped"), Seen(None, 7, None)))
    assert block.event == b"error"
    assert json.loads(block.data or b"") == {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "message": "it looped",
            "error_type": "model_response_loop",
        },
        "request_id": None,
    }


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InvalidRequest("x"), "invalid_request_error"),
        (ModelResponseLoop("x"), "api_error"),
        (Draining("x"), "overloaded_error"),
        (UpstreamTimeout("x"), "timeout_error"),
    ],
)
def test_the_body_of_an_error_has_anthropics_type(error: Any, kind: str) -> None:
    """An answer that is an error has the type that Anthropic's clients know its status by."""
    assert json.loads(messages.error_body(error))["error"]["type"] == kind


@pytest.mark.parametrize(
    ("last", "kinds"),
    [
        ({"type": "content_block_delta", "index": 3}, ["content_block_stop", "message_delta"]),
        ({"type": "content_block_start", "index": 3}, ["content_block_stop", "message_delta"]),
        ({"type": "content_block_stop", "index": 3}, ["message_delta"]),
        (None, ["message_delta"]),
    ],
)
def test_finishing_closes_the_block_that_is_open(last: Any, kinds: list[str]) -> None:
    """A live reply that is finished has its open block closed, its reason and its stop."""
    told = blocks(messages.finish_event(Seen(GenerationId(None, None, None), 7, last)))
    sent = [json.loads(block.data or b"") for block in told]
    assert [event["type"] for event in sent] == [*kinds, "message_stop"]
    assert all(event.get("index", 3) == 3 for event in sent)
