"""Legacy Completions, chat's older sister: a prompt in, text out.

The wire is chat's but for its choices, which carry ``text`` where chat has a delta, and whose
``logprobs`` are lists side by side. What both share stands in `loopguard.core.dialects.chat`. There
is no tool and so no channel of arguments; a reasoning model's thinking comes as ``reasoning``.
"""

from collections.abc import Iterable
from dataclasses import replace

from loopguard.core import json_text, sse
from loopguard.core.dialects import chat, runs
from loopguard.core.dialects.chat import error_body, fault_body
from loopguard.core.dialects.faults import read_refusal
from loopguard.core.dialects.fields import Json, index_of, string_of
from loopguard.core.events import Channel, Event, Parsed, ReasoningDelta, Seen, TextDelta
from loopguard.core.plan import Plan, read_object, text_of
from loopguard.core.retry import Refused
from loopguard.errors import LoopguardError

__all__ = [
    "CHANNELS",
    "FAULT_IN_WHOLE",
    "NAME",
    "TEXT_FIELDS",
    "Held",
    "Parser",
    "error_body",
    "error_event",
    "fault_body",
    "finish_event",
    "plan",
    "refusal_event",
]

NAME = "completions"
CHANNELS: tuple[Channel, ...] = ("content", "reasoning")
TEXT_FIELDS = ("text", "reasoning")
FAULT_IN_WHOLE = True

_TEXTS = ("text", "reasoning")
_ORIGIN = ("id", "object", "created", "model", "provider")


def plan(body: bytes) -> Plan:
    """Turn the caller's request into the upstream's, as chat does.

    Raises:
        InvalidRequest: the body is no JSON object, or ``stream`` is no boolean.
    """
    return replace(chat.plan(body), asked=text_of(read_object(body).get("prompt")))


class Parser:
    """Reads one stream, line by line."""

    def __init__(self) -> None:
        self._chunks = chat.ChunkParser(_read_choice)

    def parse(self, data: bytes) -> Parsed:
        """Read one data line.

        Raises:
            ValueError: it is neither the sentinel nor a chunk.
        """
        return self._chunks.parse(data)


def _read_choice(choice: Json, index: int, events: list[Event]) -> None:
    if text := string_of(choice, "text"):
        events.append(TextDelta(text, index))
    if text := string_of(choice, "reasoning"):
        events.append(ReasoningDelta(text, index))


class Held(runs.HeldRuns):
    """Keeps one reply until it has completed, at little more than the size of its text."""

    def _add(self, block: sse.Block, chunk: Json | None) -> None:
        if chunk is None or not _is_text(chunk):
            self._runs.keep(block)
            return
        (choice,) = chunk["choices"]
        pieces = [
            runs.take_text(choice, name, ("choices", 0, name))
            for name in _TEXTS
            if choice.get(name)
        ]
        logprobs = choice.get("logprobs") or {}
        pieces += [
            runs.take_entries(logprobs, name, ("choices", 0, "logprobs", name))
            for name in logprobs
            if logprobs[name]
        ]
        self._runs.merge(index_of(choice), chunk, pieces, block.event)

    def whole(self) -> Json:
        """The reply as the object that the upstream answers without a stream."""
        return assemble(self._runs.chunks())


def _is_text(chunk: Json) -> bool:
    """Whether the chunk carries nothing but text of one choice."""
    choices = chunk.get("choices") or []
    if len(choices) != 1 or chunk.get("usage") or chunk.get("error"):
        return False
    return not choices[0].get("finish_reason")


def assemble(chunks: Iterable[Json]) -> Json:
    """Rebuild the whole reply from the chunks of its stream.

    What names the reply keeps its first value, everything else the last that is not null.
    """
    whole: Json = {}
    choices: dict[int, Json] = {}
    for chunk in chunks:
        error = chunk.get("error")
        for name, value in chunk.items():
            if name in ("choices", "debug", "error", "obfuscation"):
                continue
            if whole.get(name) is None or (name not in _ORIGIN and value is not None):
                whole[name] = value
        parts = chunk.get("choices") or ()
        for part in parts:
            choice = choices.setdefault(index_of(part) or 0, {})
            _add(choice, part)
            if error or part.get("finish_reason") == "error":
                _fail(choice, error or part.get("error"))
        if error and not parts:
            for choice in choices.values():
                _fail(choice, error)
    whole["choices"] = [choices[index] for index in sorted(choices)]
    return whole


def _add(choice: Json, part: Json) -> None:
    for name, value in part.items():
        known = choice.get(name)
        if known is None:
            choice[name] = value
        elif name in _TEXTS:
            choice[name] = known + (value or "")
        elif name == "logprobs":
            choice[name] = known | {
                kind: (known.get(kind) or []) + (entries or [])
                for kind, entries in (value or {}).items()
            }
        elif name not in ("finish_reason", "native_finish_reason") and value is not None:
            choice[name] = value


def _fail(choice: Json, error: object) -> None:
    choice |= {"finish_reason": "error", "error": error}


def error_event(error: LoopguardError, seen: Seen) -> bytes:
    """The event that fails a stream; nothing may follow it. Without choices, as chat's."""
    rendered = chat.render_error(error, error.stream_code)
    return sse.encode(json_text.dumps(_chunk(seen) | {"error": rendered}))


def refusal_event(refused: Refused, seen: Seen) -> bytes:
    """The event that fails a stream with the upstream's own error."""
    error = {"code": refused.status} | read_refusal(refused)
    return sse.encode(json_text.dumps(_chunk(seen) | {"error": error}))


def finish_event(seen: Seen) -> bytes:
    """The events that end a stream as if the reply had reached its output cap."""
    return chat.finish_choices(_chunk(seen), {"text": ""}, seen)


def _chunk(seen: Seen) -> Json:
    return {
        "id": seen.origin.id,
        "object": "text_completion",
        "created": seen.created,
        "model": seen.origin.model or "",
    }
