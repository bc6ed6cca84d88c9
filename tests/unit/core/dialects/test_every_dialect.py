"""What is true of every wire: read, held, assembled and failed alike."""

import json
from collections import defaultdict
from typing import Any

import pytest

from loopguard.core.dialects import DIALECTS, Dialect
from loopguard.core.events import (
    ArgumentsDelta,
    CallBegan,
    Done,
    Finish,
    GenerationId,
    ReasoningDelta,
    Seen,
    TextDelta,
    Usage,
)
from loopguard.core.retry import Refused
from loopguard.errors import InvalidRequest, ModelResponseLoop, UpstreamTimeout
from tests.fake_openrouter import Message, Reply, ToolCall, thought
from tests.fake_openrouter.server import WIRES
from tests.unit.core.dialects.wires import SAMPLES, Sample, blocks, events, hold

every_sample = pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
every_dialect = pytest.mark.parametrize("path", DIALECTS)

TEXT = "A word and another, and so on. " * 40
EVERYWHERE = Message(
    TEXT, reasoning=(thought(TEXT, "sig"),), tool_calls=(ToolCall("f", json.dumps(TEXT), "c1"),)
)


@every_sample
def test_whole_is_the_upstreams_own(sample: Sample) -> None:
    """A reply rebuilt from its stream is the object that the upstream answers without one."""
    assert hold(sample.dialect, sample.stream).whole() == sample.whole


@every_sample
def test_held_stream_is_the_same_reply(sample: Sample) -> None:
    """A held stream, sent again in few events, says what the stream said, and holds as itself."""
    again = b"".join(hold(sample.dialect, sample.stream).stream())
    assert len(blocks(again)) <= len(blocks(sample.stream))
    assert hold(sample.dialect, again).whole() == sample.whole
    assert b"".join(hold(sample.dialect, again).stream()) == again
    assert _texts(sample.dialect, again) == _texts(sample.dialect, sample.stream)


@every_sample
def test_every_ending_is_known(sample: Sample) -> None:
    """A stream that completes says so, tells its usage, and names its model once."""
    read = events(sample.dialect, sample.stream)
    origins = [event for event in read if isinstance(event, GenerationId)]
    assert [origin.model for origin in origins] == ["openai/gpt-4o-mini"]
    assert any(isinstance(event, Finish) for event in read)
    assert [event for event in read if isinstance(event, Usage)][-1] == Usage(254, 500, 0.008262)
    assert (Done() in read) == (b"[DONE]" in sample.stream)


@every_dialect
@pytest.mark.parametrize("delta_chars", [1, 7, 10_000])
def test_every_channel_is_read_once(path: str, delta_chars: int) -> None:
    """Whatever is written on a channel is read there, all of it, once and in its order."""
    dialect = DIALECTS[path]
    stream = b"".join(WIRES[path].events(Reply(EVERYWHERE, delta_chars=delta_chars)))
    told = _texts(dialect, stream)
    assert told[TextDelta, 0] == TEXT
    assert told[ReasoningDelta, 0] == TEXT
    if "arguments" in dialect.CHANNELS:
        assert TEXT in told[ArgumentsDelta, 0]
        assert [event for event in events(dialect, stream) if isinstance(event, CallBegan)]
    else:
        assert not told[ArgumentsDelta, 0]


@every_dialect
def test_held_reply_is_as_large_as_its_text(path: str) -> None:
    """Small deltas are kept at less than six times their text, as often as the wire repeats it."""
    text = "A word and another. " * 5000
    stream = b"".join(WIRES[path].events(Reply(text, delta_chars=4)))
    held = hold(DIALECTS[path], stream)
    repeats = 5 if path == "/responses" else 1
    assert held.size_bytes < (repeats + 1) * len(text)
    assert sum(1 for _ in held.stream()) < len(text) / 2000


@every_dialect
def test_the_upstream_is_asked_for_a_stream(path: str) -> None:
    """Whatever the caller asked for, the upstream is asked for a stream; other keys are kept."""
    dialect = DIALECTS[path]
    whole = dialect.plan(b'{"model":"m","x":[1,{"y":null}]}')
    asked = json.loads(whole.body)
    assert asked.pop("stream") is True
    asked.pop("stream_options", None)
    assert asked == {"model": "m", "x": [1, {"y": None}]}
    assert (whole.stream, whole.model) == (False, "m")
    streamed = dialect.plan(b'{"model":"m","stream":true,"x":[1,{"y":null}]}')
    assert streamed.stream
    assert streamed.canonical() == whole.canonical()
    with pytest.raises(InvalidRequest):
        dialect.plan(b'{"stream":"yes"}')


@pytest.mark.parametrize(
    ("path", "request_"),
    [
        ("/chat/completions", {"messages": [{"role": "user", "content": "write it"}]}),
        ("/messages", {"messages": [{"role": "user", "content": [{"text": "write it"}]}]}),
        ("/responses", {"input": "write it"}),
        ("/responses", {"input": [{"role": "user", "content": [{"text": "write it"}]}]}),
        ("/completions", {"prompt": "write it"}),
        ("/completions", {"prompt": ["write it", 7]}),
    ],
)
def test_what_was_asked_is_known(path: str, request_: dict[str, Any]) -> None:
    """What the user said last is read from a request of every wire, past results of tools."""
    dialect = DIALECTS[path]
    assert dialect.plan(json.dumps(request_).encode()).asked == "write it"
    for said in request_.values():
        if isinstance(said, list) and isinstance(said[0], dict):
            said.append({"role": "user", "content": [{"type": "tool_result", "content": "x"}]})
            said.append({"role": "assistant", "content": "well"})
    assert dialect.plan(json.dumps(request_).encode()).asked == "write it"
    for name in request_:
        assert dialect.plan(json.dumps({name: 7}).encode()).asked == ""


@every_dialect
def test_errors_say_what_happened(path: str) -> None:
    """A loop names itself in a body and in a stream, and figures go with it."""
    dialect = DIALECTS[path]
    error = ModelResponseLoop("it looped", details={"attempts": 4})
    seen = Seen(GenerationId("gen-1", "m", "P"), 7, None)
    for told in (dialect.error_body(error), dialect.error_event(error, seen)):
        assert b"it looped" in told
        assert b"model_response_loop" in told
        assert b'"attempts":4' in told


@every_dialect
def test_a_failed_stream_reads_as_a_failure(path: str) -> None:
    """What ends a stream of ours is read as an error with its status, and never as a finish."""
    dialect = DIALECTS[path]
    seen = Seen(GenerationId("gen-1", None, None), 7, None)
    refused = Refused(429, b'{"error":{"message":"slow down","code":429}}')
    for told, status in (
        (dialect.error_event(ModelResponseLoop("x"), seen), 400),
        (dialect.refusal_event(refused, seen), 429),
        (dialect.refusal_event(Refused(503, b"<html>"), seen), 503),
    ):
        *_, fault = events(dialect, told)
        assert status // 100 == fault.status // 100, fault
        assert fault.error["message"]
        assert not any(isinstance(event, Finish | Done) for event in events(dialect, told))
        assert json.loads(dialect.fault_body(fault))["error"]["message"] == fault.error["message"]


@every_dialect
def test_an_outage_may_be_asked_again(path: str) -> None:
    """A timeout inside a stream is an error of the upstream's, not of the request."""
    dialect = DIALECTS[path]
    seen = Seen(GenerationId("gen-1", None, None), 7, None)
    *_, fault = events(dialect, dialect.error_event(UpstreamTimeout("slow"), seen))
    assert fault.status >= 500


@every_dialect
def test_a_live_reply_can_be_finished(path: str) -> None:
    """A live stream that is finished instead of failed reads as a reply that reached its cap."""
    dialect = DIALECTS[path]
    stream = b"".join(WIRES[path].events(Reply("A word and another, and so on.", comments=0)))
    relayed = blocks(stream)[: len(blocks(stream)) // 2]
    parser = dialect.Parser()
    last = None
    for block in relayed:
        last = parser.parse(block.data or b"").chunk or last
    ending = dialect.finish_event(Seen(GenerationId("gen-1", None, None), 7, last))
    read = events(dialect, b"".join(block.raw for block in relayed) + ending)
    (finish,) = [event for event in read if isinstance(event, Finish)]
    assert finish.reason in ("length", "max_output_tokens", "max_tokens")


@every_dialect
@pytest.mark.parametrize("data", [b"not json", b"[1]", b"7", b'"x"', b"null"])
def test_what_is_no_object_is_refused(path: str, data: bytes) -> None:
    """Data that is neither the sentinel nor an object raises ValueError."""
    with pytest.raises(ValueError):  # noqa: PT011 - the attempt knows no more either
        DIALECTS[path].Parser().parse(data)


def _texts(dialect: Dialect, stream: bytes) -> dict[tuple[type, int], str]:
    """What was told on each channel of each choice."""
    told: Any = defaultdict(str)
    for event in events(dialect, stream):
        if isinstance(event, TextDelta | ReasoningDelta | ArgumentsDelta):
            told[type(event), event.choice] += event.text
    return told


def test_event_lines_survive_holding() -> None:
    """A held event leaves with the event line that it came with."""
    stream = SAMPLES["messages: tool calls"].stream
    held = blocks(b"".join(hold(DIALECTS["/messages"], stream).stream()))
    assert [block.event for block in held][:3] == [
        b"message_start",
        b"content_block_start",
        b"content_block_delta",
    ]
    assert all(block.raw.startswith(b"event: ") for block in held)
