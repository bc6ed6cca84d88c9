"""The body of an upstream's response, taken where it arrives.

aiohttp's client hands a body on through a future, a task and one more turn of the loop, and keeps
books on each HTTP chunk; for an event of a model that costs more than all that is done with it. A
tap stands between the transport and aiohttp's protocol. It has aiohttp parse a network read, where
that is needed, and hands what of the body came with it to a function, in the same call.
Connections, TLS, proxies, the parser and the end of a response stay aiohttp's.

For that the stream that aiohttp's parser feeds is given another class, `_Pieces`, which only
collects. It uses one private attribute of aiohttp's, the stream's `_buffer`, and a test fails where
an upgrade changes what it relies on. What is no such stream (a body that is over already, or a
compressed one, whose unpacking aiohttp's own reading bounds) is read by aiohttp's `readany`.

The parser need not see a read that is one whole HTTP chunk, as nearly every read of a live model
is: it would stand afterwards where it stood before, between two chunks. It stands there when the
end of a chunk that carried something is the last that it told of, and the read ends in a line feed:
whatever it has read since can only be the beginning of the next chunk's size, whose line feed would
have been told of. Of all ways to write a chunk only the shortest is known here (the size in lower
case, without zeros before it or an extension behind it). How such a chunk begins follows from the
length of the read, so that nothing is parsed; whatever does not begin so is the parser's.

Backpressure: while nobody asks for more, what comes is kept, and the transport is not read again
after it. So a tap keeps at most what two network reads bring.
"""

import asyncio
from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler

Take: TypeAlias = Callable[[bytes], bool]
"""Is given what of a body a network read brought, and says whether it wants more at once."""

_CRLF = b"\r\n"

# An empty piece stands where an HTTP chunk begins, and where it ends.
_BOUND = b""


class _Pieces(aiohttp.StreamReader):
    """A stream that only collects what the parser feeds it."""

    __slots__ = ()

    def begin_http_chunk_receiving(self) -> None:
        """Note where an HTTP chunk begins."""
        self._buffer.append(_BOUND)

    def end_http_chunk_receiving(self) -> None:
        """Note where it ends."""
        self._buffer.append(_BOUND)

    def feed_data(self, data: bytes, size: int = 0) -> bool:  # noqa: ARG002 - as it is called
        """Take a piece of the body."""
        self._buffer.append(data)
        return False

    @property
    def ends_a_chunk(self) -> bool:
        """Whether the last that came is the end of an HTTP chunk that carried something.

        The one that ends the body carries nothing, and trailers follow.
        """
        pieces = self._buffer
        return len(pieces) > 1 and pieces[-1] == _BOUND != pieces[-2]

    def take(self) -> bytes:
        """Give what has been collected."""
        data = b"".join(self._buffer)
        self._buffer.clear()
        return data


@lru_cache(maxsize=4096)
def _opening(read_bytes: int) -> bytes | None:
    """How a read of so many bytes begins if it is one whole HTTP chunk; None where none is."""
    for digits in range(1, len(f"{read_bytes:x}") + 1):
        size = read_bytes - digits - 2 * len(_CRLF)
        if size > 0 and len(f"{size:x}") == digits:
            return b"%x\r\n" % size
    return None


class Tap(asyncio.Protocol):
    """Reads a body where it arrives.

    Args:
        pieces: the stream of the response.
        protocol: aiohttp's, of the connection.
        transport: of the connection.
    """

    def __init__(
        self, pieces: _Pieces, protocol: ResponseHandler, transport: asyncio.Transport
    ) -> None:
        self._pieces = pieces
        self._protocol = protocol
        self._transport = transport
        # aiohttp may have paused, for all that came with the head.
        self._paused = True
        self._between_chunks = False
        self._take: Take
        self._waiter: asyncio.Future[bool] | None = None
        transport.set_protocol(self)

    async def pour(self, take: Take) -> bool:
        """Hand on the body as it comes.

        Returns:
            True where `take` wants no more for now, False at the end of the body.

        Raises:
            aiohttp.ClientError: the body broke off.
        """
        if self._paused:
            self._paused = False
            self._protocol.resume_reading()
        self._take = take
        self._waiter = asyncio.get_running_loop().create_future()
        self._look(self._waiter)
        return await self._waiter

    def data_received(self, data: bytes) -> None:
        """The upstream has sent something."""
        waiter = self._waiter
        if waiter is not None and waiter.done():
            waiter = None
        if self._between_chunks and waiter is not None:
            opening = _opening(len(data))
            if opening and data.startswith(opening) and data.endswith(_CRLF):
                self._hand_on(data[len(opening) : -len(_CRLF)], waiter)
                return
        self._protocol.data_received(data)
        self._between_chunks = self._pieces.ends_a_chunk and data.endswith(b"\n")
        if self._pieces.is_eof():
            # aiohttp has given the connection back to its pool.
            self._transport.set_protocol(self._protocol)
        if waiter is not None:
            self._look(waiter)
        elif not self._pieces.is_eof():
            self._paused = True
            self._transport.pause_reading()

    def eof_received(self) -> None:
        """The upstream sends no more."""
        self._protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        self._protocol.connection_lost(exc)
        if not self._pieces.is_eof() and self._pieces.exception() is None:
            self._pieces.set_exception(aiohttp.ClientPayloadError("the connection was closed"))
        if self._waiter is not None and not self._waiter.done():
            self._look(self._waiter)

    def pause_writing(self) -> None:
        """The upstream takes the request slowly."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """The upstream takes the request again."""
        self._protocol.resume_writing()

    def _look(self, waiter: "asyncio.Future[bool]") -> None:
        """Hand on what has come, and say where that was all."""
        pieces = self._pieces
        data = pieces.take()
        if data:
            self._hand_on(data, waiter)
        if waiter.done():
            return
        if pieces.is_eof():
            waiter.set_result(False)
        elif (error := pieces.exception()) is not None:
            waiter.set_exception(error)

    def _hand_on(self, data: bytes, waiter: "asyncio.Future[bool]") -> None:
        try:
            if not self._take(data):
                waiter.set_result(True)
        except Exception as error:  # noqa: BLE001 - of `take`, raised to who gave it
            waiter.set_exception(error)


class Plain:
    """Reads a body by aiohttp's own reading.

    Args:
        content: the stream of the response.
    """

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    async def pour(self, take: Take) -> bool:
        """Hand on the body as it comes; as `Tap` does."""
        while chunk := await self._content.readany():
            if not take(chunk):
                return True
        return False


def tap(response: aiohttp.ClientResponse) -> Tap | Plain:
    """Read the body of a response whose head has come, where it arrives if that can be."""
    connection, content = response.connection, response.content
    if (
        connection is None
        or connection.protocol is None
        or connection.transport is None
        or type(content) is not aiohttp.StreamReader
        or "Content-Encoding" in response.headers
    ):
        return Plain(content)
    content.__class__ = _Pieces
    return Tap(cast("_Pieces", content), connection.protocol, connection.transport)
