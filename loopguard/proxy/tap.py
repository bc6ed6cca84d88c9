"""The body of an upstream's response, taken where it arrives.

aiohttp's client hands a body on through a future, a task and one more turn of the loop, and keeps
books on each HTTP chunk; for an event of a model that costs more than all that is done with it. A
tap stands between the transport and aiohttp's protocol. It lets aiohttp parse each network read and
hands what of the body came with it to a function, in the same call. Connections, TLS, proxies, the
parser and the end of a response stay aiohttp's.

For that the stream that aiohttp's parser feeds is given another class, `_Pieces`, which only
collects. It uses one private attribute of aiohttp's, the stream's `_buffer`, and a test fails where
an upgrade changes what it relies on. What is no such stream (a body that is over already, or a
compressed one, whose unpacking aiohttp's own reading bounds) is read by aiohttp's `readany`.

Backpressure: while nobody asks for more, what comes is kept, and the transport is not read again
after it. So a tap keeps at most what two network reads bring.
"""

import asyncio
from collections.abc import Callable
from typing import TypeAlias, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler

Take: TypeAlias = Callable[[bytes], bool]
"""Is given what of a body a network read brought, and says whether it wants more at once."""


class _Pieces(aiohttp.StreamReader):
    """A stream that only collects what the parser feeds it."""

    __slots__ = ()

    def begin_http_chunk_receiving(self) -> None:
        """Where an HTTP chunk begins means nothing here."""

    def end_http_chunk_receiving(self) -> None:
        """Nor does where it ends."""

    def feed_data(self, data: bytes, size: int = 0) -> bool:  # noqa: ARG002 - as it is called
        """Take a piece of the body."""
        self._buffer.append(data)
        return False

    def take(self) -> bytes:
        """Give what has been collected."""
        pieces = self._buffer
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        return data


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
        self._protocol.data_received(data)
        if self._pieces.is_eof():
            # aiohttp has given the connection back to its pool.
            self._transport.set_protocol(self._protocol)
        waiter = self._waiter
        if waiter is not None and not waiter.done():
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
        try:
            data = pieces.take()
            if data and not self._take(data):
                waiter.set_result(True)
            elif pieces.is_eof():
                waiter.set_result(False)
            elif (error := pieces.exception()) is not None:
                waiter.set_exception(error)
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
