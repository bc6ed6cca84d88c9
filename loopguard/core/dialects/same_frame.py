"""Events that differ from the one before them in their text alone, told by their bytes.

Theory. Nearly all of a reply comes in events of one frame around a few characters. Let an event
be an opening, a string in its quotes, and a closing. Whoever reads JSON comes to that string in a
state that the opening alone decides, and leaves it in one that does not depend on the string. So
another event with the same two ends and one JSON string between them says the same, but for that
text: two comparisons of bytes and the reading of one string stand for the reading of the event.

Where the text stands is not guessed. It is looked for by its name; an event with the ends of the
one before it is read once more with a text of ours in that place, and must say that text alone.
Whatever is not of the known frame is read by the parser, and so is a string that orjson refuses.

Blind spots: a frame that changes with every event (a clock, padding, choices in turns), which costs
a search for nothing; and text of other names, such as thinking and arguments.
"""

import re
from collections.abc import Callable

import orjson

from loopguard.core.events import Parsed, TextDelta

_OURS = "loopguard"


class SameFrame:
    """Reads the events of one stream that repeat the frame of the one before.

    Args:
        name: of the field that the text stands in.
        read: reads an event of any frame; for two that differ in their text alone it says the same.
    """

    def __init__(self, name: str, read: Callable[[bytes], Parsed]) -> None:
        self._read = read
        self._named_text = re.compile(rb'"%b": ?("(?:[^"\\]++|\\.)*+")' % name.encode())
        self._last = (b"", b"")
        self._opening = b""
        self._closing = b""
        self._choice = 0

    def parse(self, data: bytes) -> Parsed:
        """Read the data of one event.

        Raises:
            ValueError: as `read` does.
        """
        opening, closing = self._opening, self._closing
        if opening and data.startswith(opening) and data.endswith(closing):
            try:
                # From the quote that ends the opening to the one that begins the closing.
                text = orjson.loads(data[len(opening) - 1 : len(data) - len(closing) + 1])
            except orjson.JSONDecodeError:
                text = ""
            if text:
                return Parsed([TextDelta(text, self._choice)], None, only_text=text)
        parsed = self._read(data)
        self._opening = b""
        match parsed.events:
            case [TextDelta(_, choice)]:
                self._learn(data, choice)
        return parsed

    def _learn(self, data: bytes, choice: int) -> None:
        """Take an event's ends for a frame if the event before had the same."""
        found = self._named_text.search(data)
        if found is None:
            return
        start, end = found.span(1)
        last = self._last
        self._last = opening, closing = data[: start + 1], data[end - 1 :]
        if self._last == last:
            ours = self._read(opening + _OURS.encode() + closing)
            if ours.events == [TextDelta(_OURS, choice)]:
                self._opening, self._closing, self._choice = opening, closing, choice
