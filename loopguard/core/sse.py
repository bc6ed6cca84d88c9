"""Server-sent events, both ways, over bytes; no I/O.

The decoder cuts a stream into *blocks*: the bytes up to and including the blank line that
dispatches an event. A block keeps its raw bytes, so that a live relay passes on exactly what came
and never half an event, into which an error event could not be inserted.

Lines end in LF, CR or CRLF, as the WHATWG standard says. The LF of a CRLF that ends a block is
counted to the next block, where it reads as one more blank line: so a block is complete at the
same byte however the stream was split, and no byte has to be waited for.
"""

import re
from typing import NamedTuple

_LINE_END = re.compile(rb"\r\n|\n|\r")
# The first group is atomic: a CRLF is never taken for a CR and a blank line's LF.
_BLANK_LINE = re.compile(rb"(?>\r\n|\n|\r)[\n\r]")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Block(NamedTuple):
    """One dispatched event.

    Attributes:
        raw: its bytes as they came, the blank line included.
        data: the joined ``data`` lines, None where the block has none (a comment, blank lines).
        event: the ``event`` line, empty where there is none.
    """

    raw: bytes
    data: bytes | None
    event: bytes = b""


class EventTooLong(Exception):
    """A block did not end within the bound."""


class Decoder:
    """Cuts a stream of bytes into blocks.

    Args:
        max_bytes: bound of one block. A picture comes as one event, so this is no small figure.

    Attributes:
        rest: the bytes after the last complete block. At the end of a stream nothing reads them.
    """

    def __init__(self, max_bytes: int) -> None:
        self.rest = bytearray()
        self._max_bytes = max_bytes
        self._begun = False
        self._has_returns = False

    def feed(self, chunk: bytes) -> list[Block]:
        """Take the next bytes and return the blocks that they complete.

        Raises:
            EventTooLong: the block that has begun is longer than the bound.
        """
        whole = self.take(chunk)
        blocks = []
        at = 0
        while at < len(whole):
            blocks.append(self.block(whole, at))
            at += len(blocks[-1].raw)
        return blocks

    def take(self, chunk: bytes) -> bytes:
        """Take the next bytes and return whole blocks, uncut; the rest is kept for the next.

        Raises:
            EventTooLong: the block that has begun is longer than the bound.
        """
        rest = self.rest
        if rest:
            # Searching the new bytes alone keeps a long block that comes in small reads linear.
            searched = max(0, len(rest) - 2)
            rest += chunk
            if _BLANK_LINE.search(rest, searched):
                chunk = bytes(rest)
                rest.clear()
            else:
                chunk = b""
        self._has_returns = b"\r" in chunk
        end = _end_of_returned(chunk) if self._has_returns else _end_of_fed(chunk)
        if end < len(chunk):
            rest += memoryview(chunk)[end:]
            chunk = chunk[:end]
        if len(rest) > self._max_bytes:
            raise EventTooLong(f"an event of more than {self._max_bytes} bytes")
        return chunk

    def block(self, whole: bytes, at: int) -> Block:
        """Cut one block.

        Args:
            whole: what `take` has returned.
            at: where the block begins.
        """
        if self._has_returns:
            end, after = next(_BLANK_LINE.finditer(whole, at)).span()
        else:
            end = whole.index(b"\n\n", at)
            after = end + 2
        raw = whole[at:after]
        text = whole[at:end]
        if not self._begun:
            self._begun = True
            text = text.removeprefix(_BYTE_ORDER_MARK)
        if text.startswith(b"data: ") and b"\n" not in text and b"\r" not in text:
            return Block(raw, text[6:])
        data = []
        event = b""
        for line in _LINE_END.split(text):
            name, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if name == b"data":
                data.append(value)
            elif name == b"event":
                event = value
        return Block(raw, b"\n".join(data) if data else None, event)


def _end_of_returned(chunk: bytes) -> int:
    """Where the last whole block ends, 0 where none does; any lines."""
    end = 0
    for match in _BLANK_LINE.finditer(chunk):
        end = match.end()
    return end


def _end_of_fed(chunk: bytes) -> int:
    """Where the last whole block ends, 0 where none does; lines that end in LF alone."""
    last = chunk.rfind(b"\n\n")
    if last < 0:
        return 0
    end = last + 2
    if chunk[last - 1 : last] == b"\n":
        # Of an odd number of line feeds the last one begins the next block.
        end -= (end - len(chunk[:end].rstrip(b"\n"))) % 2
    return end


def encode(data: bytes, event: bytes = b"") -> bytes:
    """Frame one event. ``data`` is one line, as every JSON text of ours is."""
    head = b"event: " + event + b"\n" if event else b""
    return head + b"data: " + data + b"\n\n"


def comment(text: str) -> bytes:
    """Frame a comment, which every reader passes over."""
    return b": " + text.encode() + b"\n\n"
