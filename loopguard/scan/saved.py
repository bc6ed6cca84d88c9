"""Saved replies as the events that a proxy would have seen of them.

Text, lines of JSON, chat completions and recorded streams are read, each of them gzipped or not. A
file's name says which it is; where it does not, what the file begins with does.

A text and a recorded stream are passed on as they are read and never held. One JSON text is held,
up to ``MAX_JSON_BYTES``. A completion was written in an order that it does not keep: its reasoning
is taken to come first, then its content, then the arguments of its calls.

Blind spots: recorded streams are read as Chat Completions, the one dialect there is so far. A text
that begins like JSON or like a stream is taken for that where its name does not say otherwise.
"""

import codecs
import gzip
import re
import zlib
from collections.abc import Iterable, Iterator
from io import BufferedReader
from itertools import chain
from pathlib import PurePath
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from loopguard.core import json_text, sse
from loopguard.core.dialects import chat
from loopguard.core.events import (
    ArgumentsDelta,
    Done,
    Event,
    ReasoningDelta,
    TextDelta,
    UpstreamFault,
)

Format: TypeAlias = Literal["text", "jsonl", "json", "sse"]
"""``jsonl``: an object a line. ``json``: one object, or a list of them."""

FORMATS: tuple[Format, ...] = ("text", "jsonl", "json", "sse")

TEXT_FIELDS = ("text", "reply", "output", "content", "response", "completion")
"""Where the text of an object is looked for, in this order, when no field is named."""

MAX_JSON_BYTES = 2**26
"""What one line, document or event may take; a picture in a reply takes some 2 MB."""

_CHUNK_BYTES = 2**16

_GZIP = b"\x1f\x8b"
_SUFFIXES: dict[str, Format] = {
    ".txt": "text",
    ".md": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".sse": "sse",
}
_begins_as_stream = re.compile(rb"(?:\s|(?::|event:|id:|retry:)[^\n]*\n)*data: ?(?:\{|\[DONE\])")
_begins_as_json = re.compile(rb"\{\s*[\"}]|\[\s*\{")

_WRITTEN_ORDER = (ReasoningDelta, TextDelta, ArgumentsDelta)

Json: TypeAlias = dict[str, Any]


class Saved(NamedTuple):
    """One reply.

    Attributes:
        id: its own where it has one, else where it stands.
        events: what came of it; to be read before the next reply is asked for. Reading them may
            raise `Unreadable`.
    """

    id: str
    events: Iterable[Event]


class Unreadable(Exception):
    """Something that is no reply; the message begins with the file and, where known, the line."""


def read_replies(
    file: BufferedReader, name: str, kind: Format | None = None, field: str | None = None
) -> Iterator[Saved | Unreadable]:
    """Read the replies of one file, and what in it is none, in their order.

    Args:
        file: its bytes.
        name: what it is called.
        kind: its format; None finds it out.
        field: the field that holds an object's text; None looks for a completion and
            `TEXT_FIELDS`.
    """
    try:
        chunks = _chunks(file, name)
        head = next(chunks, b"")
        chunks = chain([head], chunks)
        match kind or _format_of(name, head):
            case "text":
                yield Saved(name, _read_text(chunks, name))
            case "sse":
                yield Saved(name, _read_stream(chunks, name))
            case "jsonl":
                yield from _read_lines(chunks, name, field)
            case "json":
                yield from _read_document(chunks, name, field)
    except Unreadable as unreadable:
        yield unreadable


def _chunks(file: BufferedReader, name: str) -> Iterator[bytes]:
    try:
        gzipped = file.peek(len(_GZIP)).startswith(_GZIP)
        source = gzip.GzipFile(fileobj=file) if gzipped else file
        while chunk := source.read(_CHUNK_BYTES):
            yield chunk
    except OSError as error:
        raise Unreadable(f"{name}: {error.strerror or error}") from None
    except (EOFError, zlib.error) as error:
        raise Unreadable(f"{name}: broken gzip: {error}") from None


def _format_of(name: str, head: bytes) -> Format:
    path = PurePath(name)
    suffix = (path.with_suffix("") if path.suffix == ".gz" else path).suffix.lower()
    if suffix in _SUFFIXES:
        return _SUFFIXES[suffix]
    head = head.removeprefix(codecs.BOM_UTF8).lstrip()
    if suffix == ".json" or _begins_as_json.match(head):
        first_line, line_end, _ = head.partition(b"\n")
        return (
            "jsonl" if first_line.startswith(b"{") and _is_whole(first_line, line_end) else "json"
        )
    return "sse" if _begins_as_stream.match(head) else "text"


def _is_whole(line: bytes, line_end: bytes) -> bool:
    """Whether a line is a JSON text, as far as its beginning tells."""
    if not line_end:
        return True
    try:
        json_text.loads(line)
    except ValueError:
        return False
    return True


def _read_text(chunks: Iterable[bytes], name: str) -> Iterator[Event]:
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    line = 1
    try:
        for chunk in chunks:
            text = decoder.decode(chunk)
            yield TextDelta(text)
            line += text.count("\n")
        yield TextDelta(decoder.decode(b"", final=True))
    except UnicodeDecodeError as error:
        line += error.object[: error.start].count(b"\n")
        raise Unreadable(f"{name}:{line}: not UTF-8") from None


def _read_stream(chunks: Iterable[bytes], name: str) -> Iterator[Event]:
    """The events of a recorded stream, up to where a proxy would stop to read it."""
    decoder = sse.Decoder(MAX_JSON_BYTES)
    parser = chat.Parser()
    line = 1
    of_the_dialect = False
    try:
        for chunk in chunks:
            for block in decoder.feed(chunk):
                if block.data is not None:
                    events, parsed, *_ = parser.parse(block.data)
                    of_the_dialect = of_the_dialect or (parsed is not None and "choices" in parsed)
                    yield from events
                    if any(isinstance(event, Done | UpstreamFault) for event in events):
                        return
                line += block.raw.count(b"\n")
    except (sse.EventTooLong, ValueError) as error:
        raise Unreadable(f"{name}:{line}: {error}") from None
    if not of_the_dialect:
        raise Unreadable(f"{name}: no stream of chat completion chunks")


def _read_lines(
    chunks: Iterable[bytes], name: str, field: str | None
) -> Iterator[Saved | Unreadable]:
    for number, line in _lines(chunks, name):
        if not line.strip():
            continue
        where = f"{name}:{number}"
        try:
            yield _read_object(_parse(line, where), where, field)
        except Unreadable as unreadable:
            yield unreadable


def _lines(chunks: Iterable[bytes], name: str) -> Iterator[tuple[int, bytes]]:
    """Lines and their numbers; one that is too long ends the file."""
    number = 1
    begun: list[bytes] = []
    begun_bytes = 0
    for chunk in chunks:
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            yield number, b"".join([*begun, end])
            begun, begun_bytes = [], 0
            number += 1
        begun.append(rest)
        begun_bytes += len(rest)
        if begun_bytes > MAX_JSON_BYTES:
            raise Unreadable(f"{name}:{number}: a line of more than {MAX_JSON_BYTES} bytes")
    yield number, b"".join(begun)


def _read_document(
    chunks: Iterable[bytes], name: str, field: str | None
) -> Iterator[Saved | Unreadable]:
    document = bytearray()
    for chunk in chunks:
        document += chunk
        if len(document) > MAX_JSON_BYTES:
            raise Unreadable(f"{name}: a JSON text of more than {MAX_JSON_BYTES} bytes")
    value = _parse(bytes(document), name)
    if not isinstance(value, list):
        yield _read_object(value, name, field)
        return
    for index, item in enumerate(value):
        try:
            yield _read_object(item, f"{name}[{index}]", field)
        except Unreadable as unreadable:
            yield unreadable


def _parse(text: bytes, where: str) -> object:
    try:
        return cast("object", json_text.loads(text.removeprefix(codecs.BOM_UTF8)))
    except ValueError:
        raise Unreadable(f"{where}: no JSON") from None


def _read_object(value: object, where: str, field: str | None) -> Saved:
    if not isinstance(value, dict):
        raise Unreadable(f"{where}: no JSON object")
    written = value.get("id")
    own_id = isinstance(written, str | int) and not isinstance(written, bool) and written != ""
    name = str(written) if own_id else where
    if field is None and "choices" in value:
        return Saved(name, _read_completion(value, where))
    fields = TEXT_FIELDS if field is None else (field,)
    for key in fields:
        match value.get(key):
            case str(text):
                return Saved(name, [TextDelta(text)])
            case dict(completion) if "choices" in completion:
                return Saved(name, _read_completion(completion, where))
    raise Unreadable(f"{where}: no text in {', '.join(fields)}; --field names another")


def _read_completion(completion: Json, where: str) -> list[Event]:
    """A whole reply reads as a stream of one chunk, whose deltas are the messages."""
    try:
        choices = [
            choice | {"delta": _delta_of(choice.get("message") or {"content": choice.get("text")})}
            for choice in completion["choices"]
        ]
        chunk = json_text.dumps({"choices": choices})
        events = chat.Parser().parse(chunk).events
    except (AttributeError, TypeError, ValueError):
        raise Unreadable(f"{where}: no chat completion") from None
    order = {kind: place for place, kind in enumerate(_WRITTEN_ORDER)}
    return sorted(events, key=lambda event: order.get(type(event), len(order)))


def _delta_of(message: Json) -> Json:
    """The message with its calls numbered, and its content, where it comes in parts, as text."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(part["text"] for part in content if isinstance(part.get("text"), str))
    calls = [call | {"index": index} for index, call in enumerate(message.get("tool_calls") or ())]
    return message | {"content": content, "tool_calls": calls}
