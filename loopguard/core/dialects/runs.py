"""What a reply is held in: events kept as they came, and small ones merged into runs.

An event of a wire carries 100 to 300 bytes of frame around a few characters of text. `Runs` keeps
the frame once and the text as it grows: an event that differs from the one before it in its text
alone, and in what runs (a clock, a number), is merged into it, until the run has reached a few
kilobytes. Events of different places (choices, tool calls, parts) may interleave, so each place has
an open run of its own. An event that is more than text ends the open runs and is kept as it came.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import orjson

from loopguard.core import json_text, sse
from loopguard.core.dialects.fields import Json
from loopguard.core.events import Parsed

SENTINEL = b"[DONE]"
"""The data that ends a stream, on the wires that have it; it is kept like any event."""

# What Python takes for an event that is kept, beside its data: two objects and a place in a list.
_EVENT_BYTES = 100

# OpenAI gives no more choices. A run's frame, some 2 kB as Python has it, is not counted while the
# run is open, so that many more would take memory without end.
_MAX_OPEN_RUNS = 128

# Long enough that frames cost a tenth of the text, short enough for a caller to show progress.
_RUN_BYTES = 4096

# Fields that differ from event to event without saying anything: the first value stands for all.
RUNNING_FIELDS = ("created", "obfuscation", "sequence_number")

Path: TypeAlias = tuple[str | int, ...]
"""Where a text stands in its event, from the top. Everything else is the event's frame."""


class Kept(NamedTuple):
    """One event of a held reply: its data, and its ``event`` line where it has one."""

    data: bytes
    event: bytes


class Piece(NamedTuple):
    """A text, or entries of a list, taken out of an event.

    Attributes:
        path: where it stood.
        inside: its JSON without quotes or brackets.
        listed: whether it is entries of a list.
    """

    path: Path
    inside: bytes
    listed: bool = False


def take_text(holder: Json, name: str, path: Path) -> Piece:
    """Take a text out of its holder and leave its frame.

    Args:
        holder: what has it, and more than an empty one.
        name: of the field.
        path: of the field, from the top of the event.
    """
    text = holder[name]
    holder[name] = ""
    return Piece(path, json_text.string_body(text))


def take_entries(holder: Json, name: str, path: Path) -> Piece:
    """Take the entries out of a list; see `take_text`."""
    entries = holder[name]
    holder[name] = []
    return Piece(path, json_text.dumps(entries)[1:-1], listed=True)


class Runs:
    """Keeps the events of one reply.

    Attributes:
        size_bytes: what is kept.
    """

    def __init__(self) -> None:
        self._kept: list[Kept] = []
        self._open: dict[Hashable, _Run] = {}
        self._last: tuple[_Run, Sequence[Path]] | None = None
        self.size_bytes = 0

    def merge(
        self, place: Hashable, frame: Json, pieces: Sequence[Piece], event: bytes = b""
    ) -> None:
        """Keep an event that carries text alone.

        Args:
            place: which text it continues.
            frame: the event without its texts.
            pieces: those texts.
            event: its ``event`` line.
        """
        run = self._open.get(place)
        if run is not None and not run.has_frame_of(frame):
            self._close(place)
            run = None
        if run is None:
            if len(self._open) >= _MAX_OPEN_RUNS:
                self._close_all()
            run = self._open[place] = _Run(frame, event)
        # Where the text stands that alone may differ in the next event, if this one has no other.
        texts = {(each.inside, each.listed) for each in pieces}
        alone = len(texts) == 1 and not pieces[0].listed
        self._last = (run, [each.path for each in pieces]) if alone else None
        before_bytes = run.size_bytes
        run.append(pieces)
        self.size_bytes += run.size_bytes - before_bytes
        if run.size_bytes >= _RUN_BYTES:
            self._cut(run)

    def extend(self, text: str, times: int) -> bool:
        """Keep events that differ from the one before them in their text alone.

        Args:
            text: of all of them.
            times: how often each event says its own.

        Returns:
            Whether they are kept; they are not where the event before them is in no run, or has
            not as many texts.
        """
        if self._last is None:
            return False
        run, paths = self._last
        if len(paths) != times:
            return False
        inside = json_text.string_body(text)
        self.size_bytes += len(inside) * times
        if run.extend(paths, inside) >= _RUN_BYTES:
            self._cut(run)
        return True

    def keep(self, block: sse.Block) -> None:
        """Keep an event as it came, after all that came before it."""
        self._close_all()
        self._keep(Kept(block.data or b"", block.event))

    def close(self) -> list[Kept]:
        """End the open runs and return all events in their order."""
        self._close_all()
        return self._kept

    def stream(self) -> Iterator[bytes]:
        """All events in their order, framed."""
        for data, event in self.close():
            yield sse.encode(data, event)

    def chunks(self) -> Iterator[Json]:
        """All events in their order, parsed, without the sentinel."""
        for data, _ in self.close():
            if data != SENTINEL:
                yield json_text.loads(data)

    def _close_all(self) -> None:
        for place in list(self._open):
            self._close(place)

    def _close(self, place: Hashable) -> None:
        self._last = None
        run = self._open.pop(place)
        if run.pending:
            self._cut(run)

    def _cut(self, run: "_Run") -> None:
        """Keep what a run has come to; it may go on."""
        self.size_bytes -= run.size_bytes
        self._keep(run.render())

    def _keep(self, kept: Kept) -> None:
        self._kept.append(kept)
        self.size_bytes += len(kept.data) + _EVENT_BYTES


class _Run:
    """Events of one frame, and the pieces that they carried.

    Attributes:
        size_bytes: of the pieces.
        pending: whether an event has come that is not rendered.
    """

    def __init__(self, frame: Json, event: bytes) -> None:
        self._frame = frame
        self._event = event
        self._insides: dict[Path, bytearray] = {}
        self._lists: set[Path] = set()
        self.size_bytes = 0
        self.pending = False

    def has_frame_of(self, frame: Json) -> bool:
        for field in RUNNING_FIELDS:
            if field in frame and field in self._frame:
                frame[field] = self._frame[field]
        return frame == self._frame

    def append(self, pieces: Iterable[Piece]) -> None:
        self.pending = True
        for path, inside, listed in pieces:
            known = self._insides.get(path)
            if known is None:
                known = self._insides[path] = bytearray()
                if listed:
                    self._lists.add(path)
            elif listed:
                known += b","
            known += inside
            self.size_bytes += len(inside)

    def extend(self, paths: Sequence[Path], inside: bytes) -> int:
        """Add to texts that the run has had before; the size that it has by then, in bytes."""
        self.pending = True
        for path in paths:
            self._insides.setdefault(path, bytearray()).extend(inside)
            self.size_bytes += len(inside)
        return self.size_bytes

    def render(self) -> Kept:
        """The events as one, and be without pieces again."""
        try:
            data = orjson.dumps(self._chunk(orjson.Fragment))
        except TypeError:  # orjson refuses something in the frame, as json_text explains
            data = json_text.dumps(self._chunk(json_text.loads))
        self._chunk(lambda text: [] if text.startswith(b"[") else "")
        self._insides.clear()
        self.size_bytes = 0
        self.pending = False
        # Copied, because orjson leaves its bytes in a buffer of up to twice their size.
        return Kept(bytes(memoryview(data)), self._event)

    def _chunk(self, value_of: Callable[[bytes], object]) -> Json:
        """The frame with its pieces, each a value made of its JSON text."""
        for path, inside in self._insides.items():
            opening, closing = (b"[", b"]") if path in self._lists else (b'"', b'"')
            *way, name = path
            node: Any = self._frame
            for step in way:
                node = node[step]
            node[name] = value_of(opening + inside + closing)
        return self._frame


class HeldRuns(ABC):
    """What keeping a reply has in common on every wire: it costs little more than its text."""

    def __init__(self) -> None:
        self._runs = Runs()

    @property
    def size_bytes(self) -> int:
        """What is kept, in bytes."""
        return self._runs.size_bytes

    def add(self, block: sse.Block, parsed: Parsed) -> None:
        """Keep one event. Its chunk is taken apart and must not be read afterwards."""
        self._add(block, parsed.chunk)

    def extend(self, raw: bytes, text: str, times: int) -> None:
        """Keep a run of events, which repeat the frame of the one before it."""
        if not self._runs.extend(text, times):
            for event in sse.Decoder(len(raw)).feed(raw):
                self._add(event, json_text.loads(event.data or b""))

    @abstractmethod
    def _add(self, block: sse.Block, chunk: Json | None) -> None:
        """Keep one event that is no more than its block and its chunk."""

    def stream(self) -> Iterator[bytes]:
        """The reply as a stream of few events, framed; the sentinel only if it came."""
        return self._runs.stream()
