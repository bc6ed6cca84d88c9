"""Chat Completions, as OpenRouter and OpenAI speak it.

A stream is `chat.completion.chunk` objects in data lines and the sentinel ``[DONE]``. The API
moves, so reading is lenient: unknown keys are kept, and all shapes of the usage chunk and of an
error inside the stream that openrouter.md records are taken.

**Holding.** A chunk that is more than text (a finish, usage, an annotation that comes whole, an
error) is kept as it came; the others are merged (`loopguard.core.dialects.runs`).

**Assembling** rebuilds the object of ``stream: false`` from those chunks, so that a reply assembled
from a held stream is the one assembled from the live stream.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from loopguard.core import json_text, sse
from loopguard.core.dialects import runs
from loopguard.core.dialects.faults import read_fault, read_refusal
from loopguard.core.dialects.fields import Json, expect, index_of, origin_of, string_of, usage_of
from loopguard.core.events import CHANNELS as EVERY_CHANNEL
from loopguard.core.events import (
    READY_VERDICTS,
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
)
from loopguard.core.plan import Plan, asked_in, asked_stream, plan_of, read_object
from loopguard.core.retry import Refused
from loopguard.errors import LoopguardError

NAME = "chat"
CHANNELS = EVERY_CHANNEL
TEXT_FIELDS = ("content", "reasoning")
FAULT_IN_WHOLE = True

# What nearly every delta holds; only the others are searched for more.
_PLAIN_DELTA = {"role", "content"}


def plan(body: bytes) -> Plan:
    """Turn the caller's request into the upstream's.

    Raises:
        InvalidRequest: the body is no JSON object, or ``stream`` is no boolean.
    """
    request = read_object(body)
    stream = asked_stream(request)
    options = request.get("stream_options")
    usage_asked = isinstance(options, dict) and options.get("include_usage") is True
    if not (stream and usage_asked):
        request["stream"] = True
        if options is None or isinstance(options, dict):
            request["stream_options"] = {**(options or {}), "include_usage": True}
        body = json_text.dumps(request)
    asked = asked_in(request.get("messages"))
    return plan_of(request, body, stream=stream, usage_asked=usage_asked, asked=asked)


class ChunkParser:
    """Reads one stream of chunks, whatever their choices hold.

    Args:
        read_choice: adds what one choice says to the events, given its index.
    """

    def __init__(self, read_choice: Callable[[Json, int, list[Event]], None]) -> None:
        self._read_choice = read_choice
        self._identified = False
        self._finished: set[int] = set()

    def parse(self, data: bytes) -> Parsed:
        """Read one data line.

        Raises:
            ValueError: it is neither the sentinel nor a chunk.
        """
        if data == runs.SENTINEL:
            return Parsed([Done()], None)
        chunk = json_text.loads(data)
        if not isinstance(chunk, dict):
            raise ValueError("a data line is no JSON object")
        try:
            return Parsed(self._events(chunk), chunk, not chunk.get("choices") and "usage" in chunk)
        except (AttributeError, KeyError, TypeError, ValueError):
            # Of those the messages may quote the stream.
            raise ValueError("a data line is no chunk of a completion") from None

    def _events(self, chunk: Json) -> list[Event]:
        events: list[Event] = []
        if not self._identified and isinstance(chunk.get("id"), str):
            self._identified = True
            events.append(origin_of(chunk, chunk["id"]))
        error = chunk.get("error")
        for choice in expect(chunk.get("choices"), list) or ():
            index = index_of(choice) or 0
            if logprobs := expect(choice.get("logprobs"), dict):
                for entries in logprobs.values():
                    expect(entries, list)
            self._read_choice(choice, index, events)
            reason = choice.get("finish_reason")
            if reason == "error" or choice.get("error"):
                error = error or choice.get("error") or {"message": "the upstream broke off"}
            elif reason is not None and index not in self._finished:
                self._finished.add(index)
                events.append(Finish(_ready_verdict(choice) or reason, index))
        if usage := chunk.get("usage"):
            events.append(usage_of(usage, ("prompt_tokens",), "completion_tokens"))
        if error:
            events.append(read_fault(error))
        return events


def _ready_verdict(choice: Json) -> str | None:
    for name in ("finish_reason", "native_finish_reason", "stop_reason"):
        reason = choice.get(name)
        if isinstance(reason, str) and reason in READY_VERDICTS:
            return reason
    return None


class Parser:
    """Reads one stream, line by line."""

    def __init__(self) -> None:
        self._chunks = ChunkParser(self._read_choice)
        self._calls: dict[int, dict[int, None]] = {}  # of each choice, in their order

    def parse(self, data: bytes) -> Parsed:
        """Read one data line.

        Raises:
            ValueError: it is neither the sentinel nor a chunk.
        """
        return self._chunks.parse(data)

    def _read_choice(self, choice: Json, index: int, events: list[Event]) -> None:
        delta = choice.get("delta")
        if not delta:
            return
        if delta.keys() != _PLAIN_DELTA:
            self._read_delta(delta, index, events)
        elif text := string_of(delta, "content"):
            events.append(TextDelta(text, index))

    def _read_delta(self, delta: Json, choice: int, events: list[Event]) -> None:
        before = len(events)
        details = delta.get("reasoning_details") or ()
        if text := string_of(delta, "content"):
            events.append(TextDelta(text, choice))
        if text := string_of(delta, "refusal"):
            events.append(TextDelta(text, choice))
        audio = expect(delta.get("audio"), dict) or {}
        if text := string_of(audio, "transcript"):
            events.append(TextDelta(text, choice))
        # OpenRouter sends the thinking twice in a delta, as `reasoning` and in the details.
        detailed = "".join(string_of(item, "text") + string_of(item, "summary") for item in details)
        thought = string_of(delta, "reasoning") or string_of(delta, "reasoning_content")
        if text := thought or detailed:
            events.append(ReasoningDelta(text, choice))
        for call in delta.get("tool_calls") or ():
            self._read_call(call, call.get("function") or {}, choice, events)
        # The older form of a call, of which a reply holds at most one.
        if function := expect(delta.get("function_call"), dict):
            self._read_call({"index": 0}, function, choice, events)
        parts = [
            expect(delta.get("annotations"), list),
            expect(delta.get("images"), list),
            audio,
            any(string_of(item, "data") or item.get("signature") for item in details),
        ]
        if len(events) == before and any(parts):
            events.append(OtherDelta(choice))

    def _read_call(self, call: Json, function: Json, choice: int, events: list[Event]) -> None:
        begun = self._calls.setdefault(choice, {})
        index = index_of(call)
        if index is None:  # Some providers send whole calls without one.
            index = len(begun) if call.get("id") or not begun else next(reversed(begun))
        if index not in begun:
            begun[index] = None
            events.append(CallBegan(string_of(function, "name"), choice, index))
        if text := string_of(function, "arguments"):
            events.append(ArgumentsDelta(text, choice, index))


_Place: TypeAlias = tuple[int, int | None]

_WHOLE_PARTS = ("annotations", "images", "audio", "function_call")


class Held(runs.HeldRuns):
    """Keeps one reply until it has completed, at little more than the size of its text."""

    def _add(self, block: sse.Block, chunk: Json | None) -> None:
        place = None if chunk is None else _place(chunk)
        if chunk is None or place is None:
            self._runs.keep(block)
        else:
            pieces = list(_take_texts(chunk["choices"][0]))
            self._runs.merge(place, chunk, pieces, block.event)

    def whole(self) -> Json:
        """The reply as the object that the upstream answers without a stream."""
        return assemble(self._runs.chunks())


def _place(chunk: Json) -> _Place | None:
    """The choice and tool call whose text a chunk carries, None where it carries more than text."""
    choices = chunk.get("choices") or []
    if len(choices) != 1 or chunk.get("usage") or chunk.get("error"):
        return None
    choice = choices[0]
    delta = choice.get("delta")
    if not delta or choice.get("finish_reason"):
        return None
    if delta.keys() == _PLAIN_DELTA:
        return choice.get("index") or 0, None
    if any(delta.get(part) for part in _WHOLE_PARTS):
        return None
    details = delta.get("reasoning_details") or ()
    calls = delta.get("tool_calls") or ()
    if len(details) > 1 or len(calls) > 1 or any(item.get("data") for item in details):
        return None
    return choice.get("index") or 0, calls[0].get("index") if calls else None


_DELTA_PATHS: dict[str, runs.Path] = {
    name: ("choices", 0, "delta", name)
    for name in ("content", "reasoning", "reasoning_content", "refusal")
}
_DETAIL_PATH: runs.Path = ("choices", 0, "delta", "reasoning_details", 0)
_CALL_PATH: runs.Path = ("choices", 0, "delta", "tool_calls", 0, "function", "arguments")
_LOGPROBS_PATH: runs.Path = ("choices", 0, "logprobs")


def _take_texts(choice: Json) -> Iterator[runs.Piece]:
    """Take the texts out of a chunk's only choice and leave its frame."""
    delta = choice["delta"]
    for name, path in _DELTA_PATHS.items():
        if delta.get(name):
            yield runs.take_text(delta, name, path)
    for item in delta.get("reasoning_details") or ():
        for name in ("text", "summary"):
            if item.get(name):
                yield runs.take_text(item, name, (*_DETAIL_PATH, name))
    for call in delta.get("tool_calls") or ():
        function = call.get("function") or {}
        if function.get("arguments"):
            yield runs.take_text(function, "arguments", _CALL_PATH)
    logprobs = choice.get("logprobs") or {}
    for name in ("content", "refusal"):
        if logprobs.get(name):
            yield runs.take_entries(logprobs, name, (*_LOGPROBS_PATH, name))


def assemble(chunks: Iterable[Json]) -> Json:
    """Rebuild the whole reply from the chunks of its stream (openrouter.md section 7).

    Keys that no rule names keep their last value that is not null.
    """
    whole: Json = {"id": None, "object": "chat.completion", "created": None, "model": None}
    choices: dict[int, _Choice] = {}
    usage = None
    for chunk in chunks:
        error = chunk.get("error")
        for name, value in chunk.items():
            if name in ("id", "created", "model", "provider"):
                if whole.get(name) is None:
                    whole[name] = value
            elif name == "usage":
                usage = value or usage
            elif name not in ("object", "choices", "debug", "error", *runs.RUNNING_FIELDS) and (
                value is not None or name not in whole
            ):
                whole[name] = value
        for choice in chunk.get("choices") or ():
            index = choice.get("index") or 0
            choices.setdefault(index, _Choice(index)).add(choice, error)
        if error and not chunk.get("choices"):
            for known in choices.values():
                known.fail(error)
    whole.setdefault("system_fingerprint", None)
    whole.setdefault("service_tier", None)
    whole["choices"] = [choices[index].whole() for index in sorted(choices)]
    if usage is not None:
        whole["usage"] = usage
    return whole


class _Choice:
    """One choice of a whole reply, as it is put together."""

    def __init__(self, index: int) -> None:
        self._choice: Json = {
            "index": index,
            "logprobs": None,
            "finish_reason": None,
            "native_finish_reason": None,
        }
        self._message: Json = {"role": "assistant", "content": None}
        self._texts: dict[str, list[str]] = {}
        self._details: list[Json] = []
        self._calls: list[Json] = []

    def add(self, choice: Json, error: object) -> None:
        for name, value in choice.items():
            if name == "logprobs":
                self._add_logprobs(value)
            elif name in ("finish_reason", "native_finish_reason"):
                if self._choice[name] is None:
                    self._choice[name] = value
            elif name not in ("index", "delta") and value is not None:
                self._choice[name] = value
        self._add_delta(choice.get("delta") or {})
        if error or choice.get("finish_reason") == "error":
            self.fail(error or choice.get("error"))

    def fail(self, error: object) -> None:
        self._choice["finish_reason"] = "error"
        self._choice["error"] = error

    def _add_delta(self, delta: Json) -> None:
        for name, value in delta.items():
            if name in _DELTA_PATHS and isinstance(value, str):
                self._texts.setdefault(name, []).append(value)
            elif name == "reasoning_details":
                for item in value or ():
                    _merge_detail(self._details, item)
            elif name == "tool_calls":
                for call in value or ():
                    _merge_call(self._calls, call)
            elif name in ("annotations", "images"):
                self._message[name] = self._message.get(name, []) + (value or [])
            elif name in ("audio", "function_call"):
                _merge_strings(self._message.setdefault(name, {}), value or {})
            elif value is not None:
                self._message[name] = value

    def _add_logprobs(self, logprobs: Json | None) -> None:
        if not logprobs:
            return
        known = self._choice["logprobs"] or {"content": None, "refusal": None}
        for name, entries in logprobs.items():
            known[name] = (known.get(name) or []) + entries if entries else known.get(name)
        self._choice["logprobs"] = known

    def whole(self) -> Json:
        message = self._message | {"refusal": None, "reasoning": None}
        message |= {name: "".join(pieces) for name, pieces in self._texts.items()}
        for name in ("refusal", "reasoning"):
            message[name] = message[name] or None
        if self._details:
            message["reasoning_details"] = self._details
        if self._calls:
            message["tool_calls"] = self._calls
        return self._choice | {"message": message}


def _merge_detail(details: list[Json], item: Json) -> None:
    """Add one piece of ``reasoning_details``: grouped by type, index and, where it has one, id.

    Text, summary and data grow; of the other fields the last value that is not null stands.
    """
    for known in details:
        if (
            known.get("type") == item.get("type")
            and known.get("index") == item.get("index")
            and (known.get("id") or item.get("id")) == (item.get("id") or known.get("id"))
        ):
            break
    else:
        details.append(dict(item))
        return
    for name, value in item.items():
        if name in ("text", "summary", "data") and isinstance(value, str):
            known[name] = (known.get(name) or "") + value
        elif value is not None:
            known[name] = value


def _merge_call(calls: list[Json], fragment: Json) -> None:
    """Add one fragment of a tool call: grouped by index; id, type and name come first, once."""
    index = fragment.get("index")
    if index is None:  # Some providers send whole calls without one.
        index = len(calls) if fragment.get("id") or not calls else calls[-1]["index"]
    known = next((call for call in calls if call["index"] == index), None)
    function = fragment.get("function") or {}
    if known is None:
        known = {"id": None, "type": "function", "index": index, "function": {"name": None}}
        known["function"]["arguments"] = ""
        calls.append(known)
        calls.sort(key=lambda call: int(call["index"]))
    for name, value in fragment.items():
        if name not in ("index", "function") and value and not known.get(name):
            known[name] = value
    known["function"]["name"] = known["function"]["name"] or function.get("name")
    known["function"]["arguments"] += function.get("arguments") or ""


def _merge_strings(known: Json, value: Json) -> None:
    for name, item in value.items():
        if isinstance(item, str) and name in ("data", "transcript", "arguments"):
            known[name] = known.get(name, "") + item
        elif item is not None:
            known[name] = item


def render_error(error: LoopguardError, code: int) -> Json:
    """The error object, as OpenRouter writes one; ``type`` is where OpenAI's clients look."""
    metadata = {"error_type": error.error_type, **error.details}
    return {
        "message": error.message,
        "code": code,
        "type": error.error_type,
        "metadata": metadata,
    }


def error_body(error: LoopguardError) -> bytes:
    """The body of an answer that is an error."""
    return json_text.dumps({"error": render_error(error, error.status)})


def fault_body(fault: UpstreamFault) -> bytes:
    """The body of an answer made of an error that the upstream reported inside a stream."""
    return json_text.dumps({"error": fault.error})


def error_event(error: LoopguardError, seen: Seen) -> bytes:
    """The event that fails a stream; nothing may follow it (clients.md).

    It has no ``choices``: the Vercel AI SDK takes a chunk that has them for a piece of the reply,
    and a reply that is nothing but this error for an empty one.
    """
    chunk = _chunk(seen) | {"error": render_error(error, error.stream_code)}
    return sse.encode(json_text.dumps(chunk))


def refusal_event(refused: Refused, seen: Seen) -> bytes:
    """The event that fails a stream with the upstream's own error."""
    chunk = _chunk(seen) | {"error": {"code": refused.status} | read_refusal(refused)}
    return sse.encode(json_text.dumps(chunk))


def finish_event(seen: Seen) -> bytes:
    """The events that end a stream as if the reply had reached its output cap."""
    return finish_choices(_chunk(seen), {"delta": {"content": ""}}, seen)


def finish_choices(chunk: Json, empty: Json, seen: Seen) -> bytes:
    """A finish for each choice that has none, and the sentinel.

    Args:
        chunk: what each of the events says of its stream.
        empty: a choice that says nothing.
        seen: what they continue.
    """
    choices = [{"index": index, **empty, "finish_reason": "length"} for index in seen.unfinished]
    events = [sse.encode(json_text.dumps(chunk | {"choices": [choice]})) for choice in choices]
    return b"".join(events) + sse.encode(runs.SENTINEL)


def _chunk(seen: Seen) -> Json:
    origin = seen.origin
    chunk: Json = {"id": origin.id, "object": "chat.completion.chunk", "created": seen.created}
    if origin.model is not None:
        chunk["model"] = origin.model
    if origin.provider is not None:
        chunk["provider"] = origin.provider
    return chunk
