"""Framing of server-sent events."""

import pytest

from loopguard.core import sse


def blocks(stream: bytes) -> list[sse.Block]:
    return sse.Decoder(1000).feed(stream)


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data: one\n\n", [b"one"]),
        (b"data:one\n\n", [b"one"]),
        (b"data:  one\n\n", [b" one"]),
        (b"data\n\n", [b""]),
        (b"data: one\ndata: two\n\n", [b"one\ntwo"]),
        (b"data: one\r\n\r\ndata: two\r\n\r\n", [b"one", b"two"]),
        (b"data: one\r\rdata: two\r\r", [b"one", b"two"]),
        (b"data: one\n\n\n\ndata: two\n\n", [b"one", None, b"two"]),
        (b": comment\n\n", [None]),
        (b":\n\ndata: one\n\n", [None, b"one"]),
        (b": inside\ndata: one\n\n", [b"one"]),
        (b"id: 7\nretry: 10\ndata: one\nunknown: field\n\n", [b"one"]),
        (b"\xef\xbb\xbfdata: one\n\n", [b"one"]),
        (b"data: without an end\n", []),
    ],
)
def test_standard(stream: bytes, expected: list[bytes | None]) -> None:
    """A block's data is what the WHATWG standard says, whatever ends its lines."""
    assert [block.data for block in blocks(stream)] == expected


def test_event_line() -> None:
    """The event line is kept, since some wires have one."""
    assert blocks(b"event: ping\ndata: {}\n\n")[0].event == b"ping"


def test_raw_bytes() -> None:
    """The raw bytes of all blocks and the rest are the stream."""
    stream = b": x\r\n\r\ndata: 1\n\ndata: 2\r\r\n\ndata: half"
    decoder = sse.Decoder(1000)
    raw = b"".join(block.raw for block in decoder.feed(stream))
    assert raw + decoder.rest == stream


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
def test_byte_by_byte(end: bytes) -> None:
    """A stream that comes byte by byte has the blocks of one that comes whole."""
    stream = b"data: one" + end + b": comment" + end + b"data: two" + end
    decoder = sse.Decoder(1000)
    arrived = [block for byte in stream for block in decoder.feed(bytes([byte]))]
    assert arrived == blocks(stream)


@pytest.mark.parametrize("line_feeds", range(2, 8))
def test_line_feeds_between(line_feeds: int) -> None:
    """Any number of line feeds between two events is cut as it is byte by byte."""
    stream = b"data: one" + b"\n" * line_feeds + b"data: two\n\n"
    decoder = sse.Decoder(1000)
    first = decoder.feed(stream[: -len(b"data: two\n\n")])
    assert first + decoder.feed(b"data: two\n\n") == blocks(stream)
    decoder = sse.Decoder(1000)
    assert [block for byte in stream for block in decoder.feed(bytes([byte]))] == blocks(stream)


@pytest.mark.parametrize("size", [1, 7, 5000])
def test_endless_event_is_refused(size: int) -> None:
    """An event that does not end within the bound is refused, however it comes."""
    decoder = sse.Decoder(1000)

    def feed_all() -> None:
        for _ in range(0, 5000, size):
            decoder.feed(b"x" * size)

    with pytest.raises(sse.EventTooLong, match="1000 bytes"):
        feed_all()


def test_encode_and_decode() -> None:
    """What is encoded decodes to itself, and a comment to nothing."""
    stream = sse.encode(b'{"a":1}', b"message") + sse.comment("alive") + sse.encode(b"[DONE]")
    assert [(block.data, block.event) for block in blocks(stream)] == [
        (b'{"a":1}', b"message"),
        (None, b""),
        (b"[DONE]", b""),
    ]
