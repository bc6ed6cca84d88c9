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
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rest = bytearray()
        self._begun = False

    @property
    def rest(self) -> bytes:
        """The bytes after the last complete block. At the end of a stream nothing reads them."""
        return bytes(self._rest)

    def feed(self, chunk: bytes) -> list[Block]:
        """Take the next bytes and return the blocks that they complete.

        Raises:
            EventTooLong: the block that has begun is longer than the bound.
        """
        if _is_one_data_line(chunk) and not self._rest:
            self._begun = True
            return [Block(chunk, chunk[6:-2])]
        if self._rest:
            # Searching the new bytes alone keeps a long block that comes in small reads linear.
            searched = max(0, len(self._rest) - 2)
            self._rest += chunk
            if not _BLANK_LINE.search(self._rest, searched):
                self._refuse_endless()
                return []
            chunk = bytes(self._rest)
            self._rest.clear()
        blocks = self._cut(chunk) if b"\r" in chunk else self._cut_line_feeds(chunk)
        if self._rest:
            self._refuse_endless()
        return blocks

    def _refuse_endless(self) -> None:
        if len(self._rest) > self._max_bytes:
            raise EventTooLong(f"an event of more than {self._max_bytes} bytes")

    def _cut_line_feeds(self, chunk: bytes) -> list[Block]:
        pieces = chunk.split(b"\n\n")
        self._rest += pieces.pop()
        return [self._block(piece, piece + b"\n\n") for piece in pieces]

    def _cut(self, chunk: bytes) -> list[Block]:
        blocks = []
        start = 0
        for match in _BLANK_LINE.finditer(chunk):
            blocks.append(self._block(chunk[start : match.start()], chunk[start : match.end()]))
            start = match.end()
        self._rest += chunk[start:]
        return blocks

    def _block(self, text: bytes, raw: bytes) -> Block:
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


def _is_one_data_line(chunk: bytes) -> bool:
    """Whether a read is one whole event of one line, as nearly all are while a model writes."""
    return (
        chunk.startswith(b"data: ")
        and chunk.endswith(b"\n\n")
        and chunk.find(b"\n") == len(chunk) - 2
        and b"\r" not in chunk
    )


def encode(data: bytes, event: bytes = b"") -> bytes:
    """Frame one event. ``data`` is one line, as every JSON text of ours is."""
    head = b"event: " + event + b"\n" if event else b""
    return head + b"data: " + data + b"\n\n"


def comment(text: str) -> bytes:
    """Frame a comment, which every reader passes over."""
    return b": " + text.encode() + b"\n\n"
