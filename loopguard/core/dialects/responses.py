"""The Responses API, as OpenRouter and OpenAI speak it.

A stream is numbered events of many types, and its last event carries the whole response. OpenAI
writes an ``event:`` line with each, OpenRouter none, but ends with the sentinel ``[DONE]``. So the
end of a reply is its terminal event, and the stream goes on to its sentinel or its end.

**Reading.** A reply's text comes up to five times: in deltas, in the ``done`` events of text, part
and item, and in the terminal event. It is read once: from the deltas, and where an upstream sends
none, from the first that brings it whole. The channel of a delta is told by the words of its type,
so that a type that is not known yet is watched too.

**Holding.** Deltas are merged; the other events are kept as they came, and numbered anew when they
leave, because callers look for gaps. What is held is thereby up to five times the text, all but
one of them only from the moment a reply is done. Nothing but the terminal event makes a whole
reply: its response is the object that the upstream answers without a stream.

**Failing.** A stream fails with ``response.failed``, after ``response.created`` where the caller
has seen none, since OpenAI's client takes no other first event. Its code is a word that callers act
on: Codex asks again on every one but ``invalid_prompt`` (clients.md), so a loop has that one, and
its own name stands in the message and in ``error_type``.

Blind spot: a live reply that is finished instead of failed ends in a response without output,
because the text that was relayed is not kept.
"""

from collections.abc import Iterator

from loopguard.core import json_text, sse
from loopguard.core.dialects import runs
from loopguard.core.dialects.faults import read_fault, read_refusal
from loopguard.core.dialects.fields import Json, expect, index_of, origin_of, string_of, usage_of
from loopguard.core.events import CHANNELS as EVERY_CHANNEL
from loopguard.core.events import (
    ArgumentsDelta,
    CallBegan,
    Channel,
    Done,
    Event,
    Finish,
    OtherDelta,
    Parsed,
    ReasoningDelta,
    Seen,
    TextDelta,
    UpstreamFault,
)
from loopguard.core.plan import Plan, asked_in, plan_stream, text_of
from loopguard.core.retry import Refused
from loopguard.errors import LoopguardError

NAME = "responses"
CHANNELS = EVERY_CHANNEL
TEXT_FIELDS = ("delta",)
FAULT_IN_WHOLE = False

_ENDINGS = ("response.completed", "response.incomplete")
_FAILURES = ("response.failed", "response.error", "error")
# They say that something begins, or that the line is open.
_FRAMES = (
    "response.created",
    "response.queued",
    "response.in_progress",
    "response.content_part.added",
    "response.reasoning_summary_part.added",
    "response.debug",
    "keepalive",
)
# Where an item or the end of one of its texts carries that text.
_TEXT_FIELDS = ("text", "refusal", "transcript", "arguments", "input", "code", "diff", "command")

_SERVER_ERROR = 500
_TOO_MANY_REQUESTS = 429


def plan(body: bytes) -> Plan:
    """Turn the caller's request into the upstream's; usage comes without being asked for.

    Raises:
        InvalidRequest: the body is no JSON object, or ``stream`` is no boolean.
    """
    return plan_stream(body, _asked)


def _asked(request: Json) -> str:
    said = request.get("input")
    return text_of(said) if isinstance(said, str) else asked_in(said)


class Parser:
    """Reads one stream, event by event."""

    def __init__(self) -> None:
        self._identified = False
        self._ended = False
        self._told: set[tuple[int, Channel]] = set()
        self._begun: set[int] = set()

    def parse(self, data: bytes) -> Parsed:
        """Read the data of one event.

        Raises:
            ValueError: it is neither the sentinel nor an event of the wire.
        """
        if data == runs.SENTINEL:
            if not self._ended:
                raise ValueError("the stream ends before its response does")
            return Parsed([Done()], None)
        chunk = json_text.loads(data)
        if not isinstance(chunk, dict):
            raise ValueError("the data of an event is no JSON object")
        try:
            return Parsed(self._events(chunk), chunk)
        except (AttributeError, KeyError, TypeError, ValueError):
            # Of those the messages may quote the stream.
            raise ValueError("the data of an event is no event of a response") from None

    def _events(self, chunk: Json) -> list[Event]:
        kind = string_of(chunk, "type")
        response = expect(chunk.get("response"), dict) or {}
        events: list[Event] = []
        if not self._identified and isinstance(response.get("id"), str):
            self._identified = True
            events.append(origin_of(response, response["id"]))
        if kind in _FAILURES or chunk.get("error"):
            events.append(read_fault(_error(chunk, response)))
        elif kind in _ENDINGS:
            self._ended = True
            output = expect(chunk["response"].get("output"), list) or []
            if not self._told and not self._begun:
                for index, item in enumerate(output):
                    events += self._item(item, index)
            if usage := response.get("usage"):
                events.append(usage_of(usage, ("input_tokens",), "output_tokens"))
            reason = (response.get("incomplete_details") or {}).get("reason")
            events.append(Finish(reason or "completed"))
        elif kind.endswith(".delta"):
            events += self._delta(kind, chunk)
        elif kind == "response.output_item.added":
            events += self._beginning(chunk["item"], index_of(chunk, "output_index") or 0)
        elif kind == "response.output_item.done":
            events += self._item(chunk["item"], index_of(chunk, "output_index") or 0)
        elif kind.endswith(".done"):
            index = index_of(chunk, "output_index") or 0
            events += self._text(_channel(kind), _written(chunk), index)
        elif kind not in _FRAMES:
            events.append(OtherDelta())
        return events

    def _delta(self, kind: str, chunk: Json) -> Iterator[Event]:
        expect(chunk.get("logprobs"), list)
        _place(chunk)
        delta = chunk.get("delta")
        if not isinstance(delta, str) or kind == "response.audio.delta":
            yield OtherDelta()
        elif delta:
            channel, index = _channel(kind), index_of(chunk, "output_index") or 0
            self._told.add((index, channel))
            yield _text_event(channel, delta, index)

    def _text(self, channel: Channel, text: str, index: int) -> Iterator[Event]:
        """A text that comes whole, unless its deltas have told it."""
        if text and (index, channel) not in self._told:
            self._told.add((index, channel))
            yield _text_event(channel, text, index)

    def _beginning(self, item: Json, index: int) -> Iterator[Event]:
        if "name" in item:
            if index not in self._begun:
                self._begun.add(index)
                yield CallBegan(string_of(item, "name"), call=index)
        elif item.get("type") not in ("message", "reasoning"):
            yield OtherDelta()

    def _item(self, item: Json, index: int) -> Iterator[Event]:
        """An item that is done: what of it has not been told yet."""
        if "name" in item:
            yield from self._beginning(item, index)
        parts = [*(expect(item.get("content"), list) or ()), *(item.get("summary") or ())]
        kind = string_of(item, "type")
        yield from self._text(_channel(kind), "".join(map(_written, [item, *parts])), index)
        if item.get("encrypted_content") or item.get("result"):
            yield OtherDelta()


def _error(chunk: Json, response: Json) -> object:
    """The error object of a failing event, wherever it stands."""
    if chunk.get("type") == "error" and not chunk.get("error"):
        return chunk
    error = chunk.get("error") or response.get("error") or {"message": "the response failed"}
    if isinstance(error, dict) and "error_type" in chunk:
        return {"error_type": chunk["error_type"]} | error
    return error


def _written(holder: Json) -> str:
    """The text that an item, a part or the end of a text carries whole."""
    return "".join(text for name in _TEXT_FIELDS if isinstance(text := holder.get(name), str))


def _place(chunk: Json) -> tuple[object, ...]:
    """Which text a delta continues."""
    names = ("output_index", "content_index", "summary_index")
    return (chunk["type"], *(index_of(chunk, name) for name in names))


def _channel(kind: str) -> Channel:
    if "reasoning" in kind:
        return "reasoning"
    return "arguments" if "_call" in kind else "content"


def _text_event(channel: Channel, text: str, index: int) -> Event:
    if channel == "content":
        return TextDelta(text)
    return ReasoningDelta(text) if channel == "reasoning" else ArgumentsDelta(text, call=index)


class Held(runs.HeldRuns):
    """Keeps one reply until it has completed."""

    def __init__(self) -> None:
        super().__init__()
        self._ending = b""

    def _add(self, block: sse.Block, chunk: Json | None) -> None:
        chunk = chunk or {}
        kind = chunk.get("type") or ""
        if kind.endswith(".delta") and isinstance(chunk.get("delta"), str) and "audio" not in kind:
            place = _place(chunk)
            pieces = [runs.take_text(chunk, "delta", ("delta",))]
            if chunk.get("logprobs"):
                pieces.append(runs.take_entries(chunk, "logprobs", ("logprobs",)))
            self._runs.merge(place, chunk, pieces, block.event)
        elif kind != "keepalive":
            self._runs.keep(block)
            if kind in _ENDINGS:
                self._ending = block.data or b""

    def stream(self) -> Iterator[bytes]:
        """The reply as a stream of few events, framed and numbered without a gap."""
        number: int | None = None
        for data, event in self._runs.close():
            if data == runs.SENTINEL:
                yield sse.encode(data, event)
                continue
            chunk = json_text.loads(data)
            if isinstance(came := chunk.get("sequence_number"), int):
                number = came if number is None else number + 1
                chunk["sequence_number"] = number
            yield sse.encode(json_text.dumps(chunk), event)

    def whole(self) -> Json:
        """The reply as the object that the upstream answers without a stream."""
        whole: Json = json_text.loads(self._ending)["response"]
        return whole


def error_body(error: LoopguardError) -> bytes:
    """The body of an answer that is an error."""
    rendered = {
        "code": _code(error.status),
        "message": error.message,
        "type": error.error_type,
        "param": None,
    }
    metadata = {"error_type": error.error_type, **error.details}
    return json_text.dumps({"error": rendered, "metadata": metadata})


def fault_body(fault: UpstreamFault) -> bytes:
    """The body of an answer made of an error that the upstream reported inside a stream."""
    return json_text.dumps({"error": fault.error, "metadata": None})


def error_event(error: LoopguardError, seen: Seen) -> bytes:
    """The events that fail a stream; nothing may follow them (clients.md)."""
    told = {"code": _code(error.stream_code), "message": f"{error.error_type}: {error.message}"}
    return _ending(seen, "failed", {"error": told}, error_type=error.error_type, **error.details)


def refusal_event(refused: Refused, seen: Seen) -> bytes:
    """The events that fail a stream with the upstream's own error."""
    error = read_refusal(refused)
    code = error.get("code")
    told = {"code": code if isinstance(code, str) else _code(refused.status)}
    return _ending(seen, "failed", {"error": error | told})


def finish_event(seen: Seen) -> bytes:
    """The events that end a stream as if the reply had reached its output cap."""
    return _ending(seen, "incomplete", {"incomplete_details": {"reason": "max_output_tokens"}})


def _code(status: int) -> str:
    """The word of ``ResponseErrorCode`` that stands for a status."""
    if status == _TOO_MANY_REQUESTS:
        return "rate_limit_exceeded"
    return "server_error" if status >= _SERVER_ERROR else "invalid_prompt"


def _ending(seen: Seen, status: str, fields: Json, **more: object) -> bytes:
    """The terminal event, and before it the first one where the caller has seen none."""
    response = _response(seen)
    created = {"type": "response.created", "response": response, "sequence_number": 0}
    last = (created if seen.last is None else seen.last).get("sequence_number")
    ended = {
        "type": f"response.{status}",
        "response": response | {"status": status} | fields,
        **more,
        "sequence_number": last + 1 if isinstance(last, int) else 0,
    }
    events = [created, ended] if seen.last is None else [ended]
    return b"".join(
        sse.encode(json_text.dumps(event), str(event["type"]).encode()) for event in events
    )


def _response(seen: Seen) -> Json:
    """A response without output, with the fields that callers' models ask for."""
    return {
        "object": "response",
        "id": seen.origin.id,
        "created_at": seen.created,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "output": [],
        "model": seen.origin.model or "",
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "usage": None,
    }
