"""Reads a stream: the bytes of a network read in, what they say out, most of it by their frame.

Theory. Nearly all of a reply comes in events of one frame around a few characters. Let an event
be an opening, a string in its quotes, and a closing, its framing as a server-sent event included.
Whoever reads it comes to that string in a state that the opening alone decides, and leaves it in
one that does not depend on the string. So another event with the same two ends and one JSON string
between them says the same, but for that text; and of a *run* of such events only the texts are new.
The same holds where one string stands twice, with the same bytes in between: so OpenRouter writes
what a model thinks.

A run is not read event by event: it is cut at its blank lines, the texts are taken from between the
ends, all ends are compared at once by framing the texts again, and all texts are read as one JSON
array. That is the work of a few calls of compiled code, however many events the run has.

The strings are put into the array with a line feed between them, which JSON allows between values
and in no string. So a text that is no string by itself, however it quotes, breaks the array or
changes its length, and is never read together with its neighbour.

Where the text stands is not guessed. It is looked for by its name; an event with the ends of the
one before it is read once more with a text of ours in that place, and must say that text alone.
Whatever is not of the known frame is read by the parser, and so is a string that orjson refuses.

Blind spots: a frame that changes with every event (a clock, a number, padding, choices in turns),
which costs a search for nothing; text of other names, such as arguments.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Protocol

import orjson

from loopguard.core import sse
from loopguard.core.events import Channel, Parsed, Place, ReasoningDelta, Run, TextDelta

_OURS = b"loopguard"

# As far as one attempt at a run looks: some two hundred events, beside which what a run costs by
# itself is little; and a stream that breaks its frame at every turn costs no more than the parser.
_RUN_BYTES = 65_536


class Parser(Protocol):
    """Reads the events of one stream, whatever their frame."""

    def parse(self, data: bytes) -> Parsed:
        """Read the data of one event.

        Two events that differ in one text alone, empty in neither, are read alike, but for it.

        Raises:
            ValueError: it is not of the dialect.
        """


class _Frame:
    """What stands around the text of an event.

    Args:
        opening: its bytes to the quote that begins the text.
        between: where the text stands twice, from the quote that ends it to the one that begins it
            again; else empty.
        closing: from the quote that ends it, to the blank line.
        delta: what an event of this frame says.
    """

    def __init__(
        self, opening: bytes, between: bytes, closing: bytes, delta: TextDelta | ReasoningDelta
    ) -> None:
        self.opening = opening
        self.between = between
        self.closing = closing
        channel: Channel = "content" if type(delta) is TextDelta else "reasoning"
        self.place = Place(channel, delta.choice, 2 if between else 1)
        self._quoted = slice(len(opening) - 1, 1 - len(closing))
        # A text has no line feed: every event of a frame has it in the same one of its lines.
        self._lines = opening.count(b"\n") + closing.count(b"\n")
        self._line = opening.count(b"\n")
        self._inside = slice(len(opening) - opening.rfind(b"\n") - 1, -closing.index(b"\n"))

    def around(self, texts: Sequence[bytes]) -> bytes:
        """The events that have these texts."""
        if self.between:
            texts = [text + self.between + text for text in texts]
        return self.opening + (self.closing + self.opening).join(texts) + self.closing

    def _once(self, inside: bytes) -> bytes:
        """The text that stands twice in what stands between the ends, if it does."""
        return inside[: (len(inside) - len(self.between)) // 2]

    def only_text(self, event: bytes) -> str:
        """The text of an event of this frame; empty for any other bytes."""
        if event.startswith(self.opening) and event.endswith(self.closing):
            # From the quote that ends the opening to the one that begins the closing.
            string = event[self._quoted]
            if self.between:
                inside = self._once(string[1:-1])
                if inside + self.between + inside != string[1:-1]:
                    return ""
                string = b'"%b"' % inside
            try:
                text: str = orjson.loads(string)
            except orjson.JSONDecodeError:
                return ""
            return text
        return ""

    def texts(self, window: bytes) -> tuple[list[bytes], bytes]:
        """The texts of the events of this frame that bytes begin with, and those events."""
        *lines, _ = window.split(b"\n")
        whole = len(lines) - len(lines) % self._lines
        inside = self._inside
        texts = [line[inside] for line in lines[self._line : whole : self._lines]]
        if self.between:
            texts = [self._once(text) for text in texts]
        events = self.around(texts)
        if window.startswith(events):
            return texts, events
        at = 0
        for number, text in enumerate(texts):
            event = self.around([text])
            if not window.startswith(event, at):
                return texts[:number], window[:at]
            at += len(event)
        return texts, window[:at]


class Reader:
    """Reads one stream.

    Args:
        parser: of the stream's dialect.
        text_fields: under which names most texts of the dialect stand.
        max_event_bytes: bound of one event.
    """

    def __init__(self, parser: Parser, text_fields: Sequence[str], max_event_bytes: int) -> None:
        self._parser = parser
        self._decoder = sse.Decoder(max_event_bytes)
        names = "|".join(text_fields).encode()
        self._named_text = re.compile(rb'"(?:%b)": ?("(?:[^"\\]++|\\.)++")' % names)
        self._last = (b"", b"", b"")
        self._frame: _Frame | None = None

    def read_lone(self, chunk: bytes) -> tuple[str, Place] | None:
        """Read the next bytes if they are one event of the known frame.

        Nearly every read of a live model is. Anything else is left to `read`.

        Returns:
            Its text and where it stands; None where they were not read.
        """
        frame = self._frame
        if frame is None or self._decoder.rest:
            return None
        text = frame.only_text(chunk)
        return (text, frame.place) if text else None

    def read(self, chunk: bytes) -> Iterator[Run | tuple[sse.Block, Parsed | None]]:
        """Take the next bytes and say, in their order, what the events that they complete say.

        Yields:
            Runs, and events with what each says, None for a comment.

        Raises:
            EventTooLong: the event that has begun is longer than the bound.
            ValueError: an event is not of the dialect.
        """
        whole = self._decoder.take(chunk)
        at = 0
        while at < len(whole):
            run = self._run(whole, at)
            if run is not None:
                yield run
                at += len(run.raw)
                continue
            block = self._decoder.block(whole, at)
            yield block, None if block.data is None else self._parse(block, block.data)
            at += len(block.raw)

    def _run(self, whole: bytes, at: int) -> Run | None:
        """Read the events of the known frame that begin there; None where they cannot be."""
        frame = self._frame
        if frame is None or not whole.startswith(frame.opening, at):
            return None
        texts, events = frame.texts(whole[at : at + _RUN_BYTES])
        if b"" in texts:
            # In the place of an empty text the parser may look for another one.
            texts = texts[: texts.index(b"")]
            events = frame.around(texts)
        text = _join(texts)
        return Run(events, text, frame.place) if text else None

    def _parse(self, block: sse.Block, data: bytes) -> Parsed:
        parsed = self._parser.parse(data)
        self._frame = None
        match parsed.events:
            case [TextDelta() | ReasoningDelta() as delta] if b"\r" not in block.raw:
                self._learn(block.raw, delta)
        return parsed

    def _learn(self, raw: bytes, delta: TextDelta | ReasoningDelta) -> None:
        """Take what stands around an event's text for a frame if the event before had the same."""
        found = self._named_text.search(raw)
        if found is None:
            return
        start, end = found.span(1)
        again = raw.find(found[1], end)
        last = self._last
        if again < 0:
            self._last = raw[: start + 1], b"", raw[end - 1 :]
        else:
            closing = raw[again + end - start - 1 :]
            self._last = raw[: start + 1], raw[end - 1 : again + 1], closing
        if self._last == last:
            frame = _Frame(*self._last, delta)
            ours = self._decoder.block(frame.around([_OURS]), 0)
            if ours.data is not None and self._parser.parse(ours.data).events == [
                delta._replace(text=_OURS.decode())
            ]:
                self._frame = frame


def _join(texts: Sequence[bytes]) -> str:
    """The strings whose insides these are, as one; empty where one of them is no string."""
    try:
        read = orjson.loads(b'["%b"]' % b'",\n"'.join(texts))
    except orjson.JSONDecodeError:
        return ""
    return "".join(read) if len(read) == len(texts) else ""
