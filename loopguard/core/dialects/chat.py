"""Chat Completions, as OpenRouter and OpenAI speak it.

A stream is `chat.completion.chunk` objects in data lines and the sentinel ``[DONE]``. The API
moves, so reading is lenient: unknown keys are kept, and all shapes of the usage chunk and of an
error inside the stream that openrouter.md records are taken.

**Holding.** A chunk carries some 300 bytes of frame around a few characters of text. `Held` keeps
the frame once and the text as it grows: a chunk that differs from the one before it in its text
alone (and in ``created``, which some upstreams let run) is merged into it, until a run has reached
a few kilobytes. Chunks of different choices and tool calls may interleave, so each has an open run
of its own. A chunk that is more than text (a finish, usage, an annotation that comes whole, an
error) ends the open runs and is kept as it came.

**Assembling** rebuilds the object of ``stream: false`` from those chunks, so that a reply assembled
from a held stream is the one assembled from the live stream.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias, TypeVar

import orjson

from loopguard.core import json_text, sse
from loopguard.core.events import (
    READY_VERDICTS,
    ArgumentsDelta,
    Done,
    Event,
    Finish,
    GenerationId,
    OtherDelta,
    Parsed,
    ReasoningDelta,
    TextDelta,
    UpstreamFault,
    Usage,
)
from loopguard.core.plan import (
    Plan,
    asked_stream,
    model_of,
    read_object,
    session_of,
    text_of,
)
from loopguard.core.retry import Refused
from loopguard.errors import LoopguardError

NAME = "chat"
SENTINEL = b"[DONE]"

_FIRST_ERROR_STATUS = 400
_LAST_ERROR_STATUS = 599
_BAD_GATEWAY = 502

# Long enough that frames cost a tenth of the text, short enough for a caller to show progress.
_RUN_BYTES = 4096

Json: TypeAlias = dict[str, Any]


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
    return Plan(body, stream, usage_asked, model_of(request), session_of(request), _asked(request))


def _asked(request: Json) -> str:
    """What the user said last: agents append tool results behind it, not requests."""
    for message in reversed(request.get("messages") or ()):
        if isinstance(message, dict) and message.get("role") == "user":
            return text_of(message.get("content"))
    return ""


class Parser:
    """Reads one stream, line by line."""

    def __init__(self) -> None:
        self._identified = False
        self._finished: set[int] = set()

    def parse(self, data: bytes) -> Parsed:
        """Read one data line.

        Raises:
            ValueError: it is neither the sentinel nor a chunk.
        """
        if data == SENTINEL:
            return Parsed([Done()], None)
        chunk = json_text.loads(data)
        if not isinstance(chunk, dict):
            raise ValueError("a data line is no JSON object")
        try:
            return Parsed(self._events(chunk), chunk, not chunk.get("choices") and "usage" in chunk)
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            # Of those the messages may quote the stream.
            raise ValueError("a data line is no chat completion chunk") from None

    def _events(self, chunk: Json) -> list[Event]:
        events: list[Event] = []
        if not self._identified and isinstance(chunk.get("id"), str):
            self._identified = True
            events.append(GenerationId(chunk["id"], chunk.get("model"), chunk.get("provider")))
        error = chunk.get("error")
        for choice in chunk.get("choices") or ():
            index = _index(choice) or 0
            if logprobs := choice.get("logprobs"):
                for entries in logprobs.values():
                    _expect(entries, list)
            if delta := choice.get("delta"):
                _read_delta(delta, index, events)
            reason = choice.get("finish_reason")
            if reason == "error" or choice.get("error"):
                error = error or choice.get("error") or {"message": "the upstream broke off"}
            elif reason is not None and index not in self._finished:
                self._finished.add(index)
                events.append(Finish(_ready_verdict(choice) or reason, index))
        if usage := chunk.get("usage"):
            events.append(_read_usage(usage))
        if error:
            events.append(read_fault(error))
        return events


def _ready_verdict(choice: Json) -> str | None:
    for name in ("finish_reason", "native_finish_reason", "stop_reason"):
        reason = choice.get(name)
        if isinstance(reason, str) and reason in READY_VERDICTS:
            return reason
    return None


# What nearly every delta holds; only the others are searched for more.
_PLAIN_DELTA = {"role", "content"}


def _read_delta(delta: Json, choice: int, events: list[Event]) -> None:
    if delta.keys() == _PLAIN_DELTA:
        if text := _text(delta, "content"):
            events.append(TextDelta(text, choice))
        return
    before = len(events)
    details = delta.get("reasoning_details") or ()
    if text := _text(delta, "content"):
        events.append(TextDelta(text, choice))
    if text := _text(delta, "refusal"):
        events.append(TextDelta(text, choice))
    # OpenRouter sends the thinking twice in a delta, as `reasoning` and in the details.
    if text := (
        _text(delta, "reasoning")
        or _text(delta, "reasoning_content")
        or "".join(_text(item, "text") or _text(item, "summary") for item in details)
    ):
        events.append(ReasoningDelta(text, choice))
    for call in delta.get("tool_calls") or ():
        if text := _text(call.get("function") or {}, "arguments"):
            events.append(ArgumentsDelta(text, choice, _index(call) or 0))
    parts = [
        _expect(delta.get("annotations"), list),
        _expect(delta.get("images"), list),
        _expect(delta.get("audio"), dict),
        delta.get("tool_calls"),
        any(_text(item, "data") or item.get("signature") for item in details),
    ]
    if len(events) == before and any(parts):
        events.append(OtherDelta(choice))


_Expected = TypeVar("_Expected")


def _expect(value: object, kind: type[_Expected]) -> _Expected | None:
    """The value, if it is null or of the kind that holding and assembling rely on."""
    if value is None or isinstance(value, kind):
        return value
    raise TypeError(kind.__name__)


def _text(holder: Json, name: str) -> str:
    return _expect(holder.get(name), str) or ""


def _index(holder: Json) -> int | None:
    return _expect(holder.get("index"), int)


def _read_usage(usage: Json) -> Usage:
    cost = usage.get("cost")
    return Usage(
        int(usage.get("prompt_tokens") or 0),
        int(usage.get("completion_tokens") or 0),
        float(cost) if cost is not None else None,
    )


def read_fault(error: object) -> UpstreamFault:
    """Read an error object as it stands in a stream or in a body of status 200."""
    known: Json = error if isinstance(error, dict) else {"message": str(error)}
    try:
        status = int(known.get("code", _BAD_GATEWAY))
    except (OverflowError, TypeError, ValueError):  # a code in words, `server_error`
        status = _BAD_GATEWAY
    if not _FIRST_ERROR_STATUS <= status <= _LAST_ERROR_STATUS:
        status = _BAD_GATEWAY
    return UpstreamFault(status, known)


# Where the text of a chunk stands, from its choice down. Everything else is its frame.
_Path: TypeAlias = tuple[str | int, ...]
_Place: TypeAlias = tuple[int, int | None]

_DELTA_TEXTS = ("content", "reasoning", "reasoning_content", "refusal")
_WHOLE_PARTS = ("annotations", "images", "audio", "function_call")
# Fields that differ from chunk to chunk without saying anything: the first value stands for all.
_RUNNING_FIELDS = ("created", "obfuscation")


class Held:
    """Keeps one reply until it has completed, at little more than the size of its text.

    Args:
        usage_asked: whether a chunk that holds nothing but the usage is part of the stream.
    """

    def __init__(self, usage_asked: bool) -> None:  # noqa: FBT001 - read where it is built
        self._usage_asked = usage_asked
        self._closed: list[bytes] = []
        self._closed_bytes = 0
        self._open: dict[_Place, _Run] = {}
        self._ended = False
        self._unasked_usage: Json | None = None

    @property
    def size_bytes(self) -> int:
        """What is kept, in bytes."""
        return self._closed_bytes + sum(run.size_bytes for run in self._open.values())

    def add(self, data: bytes, parsed: Parsed) -> None:
        """Keep one data line. Its chunk is taken apart and must not be read afterwards."""
        chunk = parsed.chunk
        if chunk is None:
            self._ended = True
        elif parsed.usage_only and not self._usage_asked:
            self._unasked_usage = chunk
        elif (place := _place(chunk)) is None:
            self._close_all()
            self._keep(data)
        else:
            self._merge(place, chunk)

    def _merge(self, place: _Place, chunk: Json) -> None:
        texts = list(_take_texts(chunk["choices"][0]))
        run = self._open.get(place)
        if run is not None and not run.has_frame_of(chunk):
            self._close(place)
            run = None
        if run is None:
            run = self._open[place] = _Run(chunk)
        run.append(texts)
        if run.size_bytes >= _RUN_BYTES:
            self._close(place)

    def _close(self, place: _Place) -> None:
        self._keep(self._open.pop(place).render())

    def _close_all(self) -> None:
        for place in list(self._open):
            self._close(place)

    def _keep(self, data: bytes) -> None:
        # Framing copies: orjson leaves its bytes in a buffer of up to twice their size.
        event = sse.encode(data)
        self._closed.append(event)
        self._closed_bytes += len(event)

    def stream(self) -> Iterator[bytes]:
        """The reply as a stream of few events, framed; the sentinel only if it came."""
        self._close_all()
        yield from self._closed
        if self._ended:
            yield sse.encode(SENTINEL)

    def whole(self) -> Json:
        """The reply as the object that the upstream answers without a stream."""
        self._close_all()
        chunks = [json_text.loads(event.removeprefix(b"data: ")) for event in self._closed]
        if self._unasked_usage is not None:
            chunks.append(self._unasked_usage)
        return assemble(chunks)


class _Run:
    """Chunks of one frame, and the texts that they carried, as the insides of JSON values."""

    def __init__(self, frame: Json) -> None:
        self._frame = frame
        self._texts: dict[_Path, bytearray] = {}
        self.size_bytes = 0

    def has_frame_of(self, chunk: Json) -> bool:
        for field in _RUNNING_FIELDS:
            if field in chunk and field in self._frame:
                chunk[field] = self._frame[field]
        return chunk == self._frame

    def append(self, texts: Iterable[tuple[_Path, bytes]]) -> None:
        for path, text in texts:
            known = self._texts.setdefault(path, bytearray())
            if known and path[0] == "logprobs":
                known += b","
            known += text
            self.size_bytes += len(text)

    def render(self) -> bytes:
        try:
            return orjson.dumps(self._chunk(orjson.Fragment))
        except TypeError:  # orjson refuses something in the frame, as json_text explains
            return json_text.dumps(self._chunk(json_text.loads))

    def _chunk(self, value_of: Callable[[bytes], object]) -> Json:
        """The frame with its texts, each a value made of its JSON text."""
        for path, text in self._texts.items():
            opening, closing = (b"[", b"]") if path[0] == "logprobs" else (b'"', b'"')
            *way, name = path
            node = self._frame["choices"][0]
            for step in way:
                node = node[step]
            node[name] = value_of(opening + text + closing)
        return self._frame


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


def _take_texts(choice: Json) -> Iterator[tuple[_Path, bytes]]:
    """Take the texts out of a chunk's only choice and leave its frame."""
    delta = choice["delta"]
    for name in _DELTA_TEXTS:
        if text := delta.get(name):
            delta[name] = ""
            yield ("delta", name), json_text.string_body(text)
    for item in delta.get("reasoning_details") or ():
        for name in ("text", "summary"):
            if text := item.get(name):
                item[name] = ""
                yield ("delta", "reasoning_details", 0, name), json_text.string_body(text)
    for call in delta.get("tool_calls") or ():
        function = call.get("function") or {}
        if text := function.get("arguments"):
            function["arguments"] = ""
            path = ("delta", "tool_calls", 0, "function", "arguments")
            yield path, json_text.string_body(text)
    logprobs = choice.get("logprobs") or {}
    for name in ("content", "refusal"):
        if entries := logprobs.get(name):
            logprobs[name] = []
            yield ("logprobs", name), json_text.dumps(entries)[1:-1]


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
            elif name not in ("object", "choices", "debug", "error", *_RUNNING_FIELDS) and (
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
            if name in _DELTA_TEXTS and isinstance(value, str):
                self._texts.setdefault(name, []).append(value)
            elif name == "reasoning_details":
                for item in value or ():
                    _merge_detail(self._details, item)
            elif name == "tool_calls":
                for call in value or ():
                    _merge_call(self._calls, call)
            elif name in ("annotations", "images"):
                self._message[name] = self._message.get(name, []) + (value or [])
            elif name == "audio":
                _merge_strings(self._message.setdefault("audio", {}), value or {})
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
        if isinstance(item, str) and name in ("data", "transcript"):
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


def error_event(error: LoopguardError, origin: GenerationId, created: int) -> bytes:
    """The event that fails a stream; nothing may follow it (clients.md)."""
    chunk = _chunk(origin, created, "error")
    chunk["error"] = render_error(error, error.stream_code)
    return sse.encode(json_text.dumps(chunk))


def refusal_event(refused: Refused, origin: GenerationId, created: int) -> bytes:
    """The event that fails a stream with the upstream's own error."""
    try:
        error = json_text.loads(refused.body)["error"]
    except (KeyError, TypeError, ValueError):
        error = {"message": f"the upstream answered with status {refused.status}"}
    chunk = _chunk(origin, created, "error")
    chunk["error"] = {"code": refused.status} | read_fault(error).error
    return sse.encode(json_text.dumps(chunk))


def finish_event(origin: GenerationId, created: int) -> bytes:
    """The events that end a stream as if the reply had reached its output cap."""
    chunk = _chunk(origin, created, "length")
    return sse.encode(json_text.dumps(chunk)) + sse.encode(SENTINEL)


def _chunk(origin: GenerationId, created: int, finish_reason: str) -> Json:
    chunk: Json = {"id": origin.id, "object": "chat.completion.chunk", "created": created}
    if origin.model is not None:
        chunk["model"] = origin.model
    if origin.provider is not None:
        chunk["provider"] = origin.provider
    delta = {"content": ""}
    chunk["choices"] = [{"index": 0, "delta": delta, "finish_reason": finish_reason}]
    return chunk
