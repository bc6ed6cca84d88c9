"""The decoder of server-sent events, over any bytes and any split of them."""

from hypothesis import given
from hypothesis import strategies as st

from loopguard.core import sse
from tests.samples import cut

# Mostly what makes a difference to framing, and any bytes between.
STREAMS = st.lists(
    st.sampled_from(
        [
            b"\n",
            b"\r",
            b"\r\n",
            b"\n\n",
            b"data: ",
            b"data:",
            b"event: x",
            b": x",
            b":",
            b"\xef\xbb",
        ]
    )
    | st.binary(max_size=8)
).map(b"".join)
CUTS = st.lists(st.integers(0, 400), max_size=20)


def decode(pieces: list[bytes], max_bytes: int = 1 << 20) -> tuple[list[sse.Block], bytes]:
    decoder = sse.Decoder(max_bytes)
    blocks = [block for piece in pieces for block in decoder.feed(piece)]
    return blocks, decoder.rest


@given(STREAMS, CUTS)
def test_no_byte_is_lost(stream: bytes, cuts: list[int]) -> None:
    """The raw bytes of the blocks and the rest are the stream, whatever it is."""
    blocks, rest = decode(cut(stream, cuts))
    assert b"".join(block.raw for block in blocks) + rest == stream


@given(STREAMS, CUTS)
def test_any_split_gives_the_same_blocks(stream: bytes, cuts: list[int]) -> None:
    """Whole, byte by byte and split anywhere, a stream is the same blocks."""
    whole = decode([stream])
    assert decode(cut(stream, cuts)) == whole
    assert decode(cut(stream, list(range(len(stream))))) == whole


@given(STREAMS, CUTS, st.integers(1, 60))
def test_only_the_bound_is_refused(stream: bytes, cuts: list[int], max_bytes: int) -> None:
    """A decoder raises nothing but the refusal of a block that is longer than its bound."""
    try:
        _, rest = decode(cut(stream, cuts), max_bytes)
    except sse.EventTooLong:
        blocks, rest = decode([stream])
        assert max(len(piece) for piece in (rest, *(block.raw for block in blocks))) > max_bytes
    else:
        assert len(rest) <= max_bytes
