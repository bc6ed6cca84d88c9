"""Anthropic's Messages, as OpenRouter and Anthropic speak it.

A stream is one message, its content in numbered blocks, each opened, written in deltas and closed.
Every event has an ``event:`` line, which Anthropic's clients read the kind of an event from. The
stop reason comes in ``message_delta``: with it a reply has come to its end, and the stream goes on
to its own. The message's id is not the generation's, which the response's headers carry.

**Holding.** Deltas of text, thinking and arguments are merged, pings are dropped, all other events
are kept as they came.

**Assembling** puts each block's deltas into the block that its start brought, and what
``message_delta`` brings into the message: its usage counts the whole reply, so its figures stand
over those of the start. The arguments of a call that was cut by a cap are no JSON; the call then
keeps the input of its start, which is empty.

Blind spots: a live reply that is finished instead of failed tells no count of output tokens, since
the upstream had not counted them yet. A provider that wrote deltas into a block of its own kind
would be watched there only for the words that `_DELTAS` names.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress

from loopguard.core import json_text, sse
from loopguard.core.dialects import runs
from loopguard.core.dialects.faults import read_fault, read_refusal
from loopguard.core.dialects.fields import Json, expect, index_of, origin_of, string_of, usage_of
from loopguard.core.events import CHANNELS as EVERY_CHANNEL
from loopguard.core.events import (
    ArgumentsDelta,
    CallBegan,
    Done,
    Event,
    Finish,
    OtherDelta,
    Parsed,
    ReasoningDelta,
    Seen,
    TextDelta,
    UpstreamFault,
    Usage,
)
from loopguard.core.plan import Plan, asked_in, plan_stream
from loopguard.core.retry import Refused
from loopguard.errors import LoopguardError

NAME = "messages"
CHANNELS = EVERY_CHANNEL
TEXT_FIELDS = ("text", "thinking")
FAULT_IN_WHOLE = False

# The kinds of delta that are a model's text, and where each carries it.
_DELTAS = {
    "text_delta": "text",
    "compaction_delta": "content",
    "thinking_delta": "thinking",
    "input_json_delta": "partial_json",
}

# Anthropic, "Errors". What is not listed is the caller's fault below 500, the API's from there on.
_ERROR_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_SERVER_ERROR = 500


def plan(body: bytes) -> Plan:
    """Turn the caller's request into the upstream's; usage comes without being asked for.

    Raises:
        InvalidRequest: the body is no JSON object, or ``stream`` is no boolean.
    """
    return plan_stream(body, lambda request: asked_in(request.get("messages")))


class Parser:
    """Reads one stream, event by event."""

    def __init__(self) -> None:
        self._usage: Json | None = None
        self._blocks: set[int] = set()
        self._finished = False

    def parse(self, data: bytes) -> Parsed:
        """Read the data of one event.

        Raises:
            ValueError: it is neither the sentinel nor an event of the wire, or not in its order.
        """
        if data == runs.SENTINEL:
            if not self._finished:
                raise ValueError("the stream ends before its message does")
            return Parsed([Done()], None)
        chunk = json_text.loads(data)
        if not isinstance(chunk, dict):
            raise ValueError("the data of an event is no JSON object")
        if chunk.get("type") == "ping":
            return Parsed([], None)
        try:
            return Parsed(list(self._events(chunk)), chunk)
        except (AttributeError, KeyError, TypeError, ValueError):
            # Of those the messages may quote the stream.
            raise ValueError("the data of an event is no event of a message") from None

    def _events(self, chunk: Json) -> Iterator[Event]:
        kind = string_of(chunk, "type")
        if kind == "error" or chunk.get("error"):
            yield read_fault(chunk.get("error") or chunk)
        elif kind == "message_start":
            message = chunk["message"]
            yield origin_of(message, None)
            yield self._count(message.get("usage") or {})
        elif self._usage is None:
            raise KeyError("message_start")
        elif kind == "content_block_start":
            index = index_of(chunk) or 0
            self._blocks.add(index)
            yield from _read_block(chunk["content_block"], index)
        elif kind == "content_block_delta":
            index = index_of(chunk) or 0
            if index not in self._blocks:
                raise KeyError("content_block_start")
            yield from _read_delta(chunk["delta"], index)
        elif kind in ("message_delta", "message_stop"):
            delta = expect(chunk.get("delta"), dict) or {}
            if usage := expect(chunk.get("usage"), dict):
                yield self._count(usage)
            if not self._finished and (kind == "message_stop" or delta.get("stop_reason")):
                self._finished = True
                yield Finish(delta.get("stop_reason") or kind)

    def _count(self, usage: Json) -> Usage:
        known = self._usage = _merge_usage(self._usage or {}, usage)
        prompt = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        return usage_of(known, prompt, "output_tokens")


def _merge_usage(known: Json, usage: Json) -> Json:
    """The counts of ``message_delta`` over those of ``message_start``; null says nothing."""
    return known | {name: value for name, value in usage.items() if value is not None}


def _read_block(block: Json, index: int) -> Iterator[Event]:
    """A block's start, which most providers send empty and some whole."""
    kind = string_of(block, "type")
    if text := string_of(block, "thinking"):
        yield ReasoningDelta(text)
    elif kind == "text":
        if text := string_of(block, "text"):
            yield TextDelta(text)
        if expect(block.get("citations"), list):
            yield OtherDelta()
    elif kind.endswith("tool_use"):
        yield CallBegan(string_of(block, "name"), call=index)
        if block.get("input"):
            yield ArgumentsDelta(json_text.dumps(block["input"]).decode(), call=index)
    elif kind != "thinking":
        yield OtherDelta()


def _read_delta(delta: Json, index: int) -> Iterator[Event]:
    kind = string_of(delta, "type")
    if kind not in _DELTAS:
        yield OtherDelta()
    elif text := string_of(delta, _DELTAS[kind]):
        if kind == "thinking_delta":
            yield ReasoningDelta(text)
        elif kind == "input_json_delta":
            yield ArgumentsDelta(text, call=index)
        else:
            yield TextDelta(text)


class Held(runs.HeldRuns):
    """Keeps one reply until it has completed, at little more than the size of its text."""

    def _add(self, block: sse.Block, chunk: Json | None) -> None:
        chunk = chunk or {}
        delta = chunk.get("delta") or {}
        if chunk.get("type") == "content_block_delta" and delta.get("type") in _DELTAS:
            place = chunk.get("index"), delta["type"]
            name = _DELTAS[delta["type"]]
            pieces = [runs.take_text(delta, name, ("delta", name))] if delta.get(name) else []
            self._runs.merge(place, chunk, pieces, block.event)
        elif chunk or block.data == runs.SENTINEL:
            self._runs.keep(block)

    def whole(self) -> Json:
        """The reply as the object that the upstream answers without a stream."""
        return assemble(self._runs.chunks())


def assemble(chunks: Iterable[Json]) -> Json:
    """Rebuild the whole message from the events of its stream."""
    message: Json = {}
    usage: Json = {}
    blocks: dict[int, _Block] = {}
    for chunk in chunks:
        kind = chunk.get("type")
        if kind == "content_block_start":
            blocks[index_of(chunk) or 0] = _Block(chunk["content_block"])
        elif kind == "content_block_delta":
            blocks[index_of(chunk) or 0].add(chunk["delta"])
        elif kind in ("message_start", "message_delta", "message_stop"):
            told = {name: value for name, value in chunk.items() if name != "type"}
            told |= told.pop("message", None) or told.pop("delta", None) or {}
            usage = _merge_usage(usage, told.pop("usage", None) or {})
            message |= told
    if usage:
        message["usage"] = usage
    message["content"] = [blocks[index].whole() for index in sorted(blocks)]
    return message


class _Block:
    """One block of a whole message, as it is put together."""

    def __init__(self, block: Json) -> None:
        self._block = dict(block)
        self._texts: dict[str, list[str]] = {}

    def add(self, delta: Json) -> None:
        for name, value in delta.items():
            if name == "citation":
                known = self._block.get("citations")
                self._block["citations"] = [*(known if isinstance(known, list) else ()), value]
            elif name != "type" and isinstance(value, str):
                self._texts.setdefault(name, []).append(value)
            elif name != "type" and value is not None:
                self._block[name] = value

    def whole(self) -> Json:
        written = {name: "".join(pieces) for name, pieces in self._texts.items()}
        if arguments := written.pop("partial_json", ""):
            with suppress(ValueError):
                self._block["input"] = json_text.loads(arguments.encode(errors="surrogatepass"))
        for name, text in written.items():
            begun = self._block.get(name)
            self._block[name] = begun + text if isinstance(begun, str) else text
        return self._block


def error_body(error: LoopguardError) -> bytes:
    """The body of an answer that is an error."""
    return _error(error.status, error.message, error.error_type, **error.details)


def fault_body(fault: UpstreamFault) -> bytes:
    """The body of an answer made of an error that the upstream reported inside a stream."""
    error = {"type": _error_type(fault.status), "message": ""} | fault.error
    return json_text.dumps({"type": "error", "error": error, "request_id": None})


def error_event(error: LoopguardError, _: Seen) -> bytes:
    """The event that fails a stream; nothing may follow it."""
    body = _error(error.stream_code, error.message, error.error_type, **error.details)
    return sse.encode(body, b"error")


def refusal_event(refused: Refused, _: Seen) -> bytes:
    """The event that fails a stream with the upstream's own error."""
    fault = UpstreamFault(refused.status, read_refusal(refused))
    return sse.encode(fault_body(fault), b"error")


def finish_event(seen: Seen) -> bytes:
    """The events that end a stream as if the reply had reached its output cap."""
    last = seen.last or {}
    delta = {"stop_reason": "max_tokens", "stop_sequence": None}
    events: list[Json] = [
        {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 0}},
        {"type": "message_stop"},
    ]
    if last.get("type") in ("content_block_start", "content_block_delta"):
        events.insert(0, {"type": "content_block_stop", "index": last["index"]})
    return b"".join(sse.encode(json_text.dumps(it), it["type"].encode()) for it in events)


def _error_type(status: int) -> str:
    fallback = "api_error" if status >= _SERVER_ERROR else "invalid_request_error"
    return _ERROR_TYPES.get(status, fallback)


def _error(status: int, message: str, error_type: str, **details: object) -> bytes:
    error = {
        "type": _error_type(status),
        "message": message,
        "error_type": error_type,
        **details,
    }
    return json_text.dumps({"type": "error", "error": error, "request_id": None})
