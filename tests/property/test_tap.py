"""What a tap hands on is what aiohttp reads, however a body is chunked and split."""

import asyncio
from typing import cast

from aiohttp import StreamReader
from aiohttp.client_proto import ResponseHandler
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loopguard.proxy.tap import Tap, _Pieces

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

# As everyone writes them, as some may, and as nobody may.
SIZES = st.sampled_from(["%x"] * 6 + ["%X", "0%x", "%x ", "%x;a=b", "+%x", "0x%x", "-%x", "%x\r"])
BODIES = st.binary(min_size=1, max_size=40) | st.sampled_from(
    [b"\r\n", b"1\r\na\r\n", b"\n", b"0\r\n\r\n", b"a" * 255, b"a" * 256, b"a" * 5000]
)
CHUNKS = st.tuples(SIZES, BODIES).map(
    lambda chunk: (chunk[0] % len(chunk[1])).encode() + b"\r\n" + chunk[1] + b"\r\n"
)
# What ends a body, before its time too, and what does not belong there.
OTHERS = st.sampled_from(
    [
        *(b"0\r\n\r\n", b"0\r\n", b"\r\n", b"0\r\nX: y\r\n", b"00\r\n\r\n", b"5\r\nabc", b"5"),
        *(b"3\r\nabcd\r\n", b"3\nabc\n", b"3\r\nabc", b"\n", b"g\r\n", b"HTTP/1.1 200 OK\r\n\r\n"),
    ]
)
READS = st.lists(st.lists(CHUNKS | CHUNKS | OTHERS, max_size=4).map(b"".join), max_size=12)
CUTS = st.lists(st.integers(1, 400), max_size=3)


class Transport(asyncio.Transport):
    """A connection as far as a client sees it."""

    protocol: asyncio.Protocol
    closing = False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = cast("asyncio.Protocol", protocol)

    def close(self) -> None:
        self.closing = True


class Response:
    """A response whose head has come.

    Args:
        protocol: of its connection.
        content: its body, as aiohttp keeps it.
    """

    def __init__(self, protocol: ResponseHandler, content: StreamReader) -> None:
        self.protocol = protocol
        self.content = content

    @classmethod
    async def begin(cls) -> "Response":
        transport, protocol = Transport(), ResponseHandler(asyncio.get_running_loop())
        protocol.connection_made(transport)
        transport.set_protocol(protocol)
        protocol.set_response_params(read_until_eof=True, read_bufsize=1 << 20)
        protocol.data_received(HEAD)
        _, content = await protocol.read()
        return cls(protocol, content)

    @property
    def transport(self) -> Transport:
        return cast("Transport", self.protocol.transport)

    def go_on(self, reads: list[bytes]) -> tuple[bool, bool]:
        """Read on; whether the body is whole, and whether its connection may be used again."""
        transport = self.transport
        for read in reads:
            if not transport.closing and not self.content.is_eof():
                transport.protocol.data_received(read)
        whole = self.content.is_eof()
        return whole, not self.protocol.should_close and not transport.closing


async def by_tap(reads: list[bytes]) -> tuple[bytes, bool, bool]:
    """What of a body comes, whether that is all, and whether its connection may be used again."""
    response = await Response.begin()
    response.content.__class__ = _Pieces
    tap = Tap(cast("_Pieces", response.content), response.protocol, response.transport)
    came: list[bytes] = []

    def take(data: bytes) -> bool:
        came.append(data)
        return True

    pouring = asyncio.create_task(tap.pour(take))
    await asyncio.sleep(0)
    whole, reusable = response.go_on(reads)
    assert whole or not pouring.done()
    pouring.cancel()
    return b"".join(came), whole, reusable


async def by_aiohttp(reads: list[bytes]) -> tuple[bytes, bool, bool]:
    """The same, by its own reading."""
    response = await Response.begin()
    whole, reusable = response.go_on(reads)
    return response.content.read_nowait(), whole, reusable


@given(reads=READS, cuts=CUTS)
@example(reads=[b"3\r\nabc\r\n", b"3\r\nabc\r\n5", b"3\r\nabc\r\n"], cuts=[])
@example(reads=[b"3\r\nabc\r\n", b"0\r\n", b"3\r\nabc\r\n"], cuts=[])
@example(reads=[b"3\r\nabc\r\n3\r\nabc\r\n0\r\n", b"3\r\nabc\r\n"], cuts=[])
@example(reads=[b"3\r\nabc\r\n", b"3\r\nabcde", b"3\r\nabc\r\n"], cuts=[])
@settings(deadline=None, max_examples=200)
def test_a_tap_reads_what_aiohttp_reads(reads: list[bytes], cuts: list[int]) -> None:
    """A body of HTTP chunks is handed on byte for byte, to the end that aiohttp sees in it."""
    for at in cuts:
        reads = [part for read in reads for part in (read[:at], read[at:])]
    reads = [read for read in reads if read]
    assert asyncio.run(by_tap(reads)) == asyncio.run(by_aiohttp(reads))
