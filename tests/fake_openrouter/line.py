"""A connection of the fake: what it writes, and when the other side leaves."""

import asyncio
import fcntl
import socket
import struct
import sys
import termios
import time

from tests.fake_openrouter.chat import GENERATION_ID


class Connection:
    """One TCP connection as its server's end sees it.

    Attributes:
        opened_at: monotonic seconds.
        open: whether neither side has ended it.
        left: set when the other side has closed or reset it before the fake did.
        left_at: when that was, monotonic seconds; None where it was not.
    """

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.opened_at = time.monotonic()
        self.open = True
        self.left = asyncio.Event()
        self.left_at: float | None = None
        self._writer = writer

    async def write(self, data: bytes) -> None:
        """Write and wait until the socket has taken it all."""
        self._writer.write(data)
        await self._writer.drain()

    def ended(self) -> None:
        """Note that the other side sends no more."""
        if self.open:
            self.open = False
            self.left_at = time.monotonic()
            self.left.set()

    def close(self) -> None:
        """End the connection properly."""
        self.open = False
        self._writer.close()

    def widen(self, buffer_bytes: int) -> None:
        """Let the socket take more at once than `SEND_BUFFER_BYTES`."""
        peer = self._writer.get_extra_info("socket")
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)

    @property
    def untaken_bytes(self) -> int:
        """What was written and has not reached the other side's machine yet."""
        unsent = fcntl.ioctl(
            self._writer.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4)
        )
        return int.from_bytes(unsent, sys.byteorder)

    def reset(self) -> None:
        """End the connection with a reset, as a crashed upstream does."""
        self.open = False
        linger_not_at_all = struct.pack("ii", 1, 0)
        self._writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, linger_not_at_all
        )
        self._writer.transport.abort()


class Line:
    """The fake's end of a connection while one request is answered.

    Attributes:
        connection: what is written to.
        generation_id: written over `GENERATION_ID` wherever that leaves.
        written_bytes: what the socket has taken of this answer.
        chunked: whether a body is open that its end has to be written to.
        split_bytes: size of a write, None for whatever the step sends.
        pace_s: seconds of rest after each write.
    """

    def __init__(self, connection: Connection, generation_id: str) -> None:
        self.connection = connection
        self.generation_id = generation_id
        self.written_bytes = 0
        self.chunked = False
        self.split_bytes: int | None = None
        self.pace_s = 0.0

    async def raw(self, data: bytes) -> None:
        """Write bytes of the response as they are, head and framing included."""
        data = data.replace(GENERATION_ID.encode(), self.generation_id.encode())
        size = self.split_bytes or len(data)
        for start in range(0, len(data), size):
            piece = data[start : start + size]
            await self.connection.write(piece)
            self.written_bytes += len(piece)
            await asyncio.sleep(self.pace_s)  # also lets a reader in this loop see each piece alone

    async def body(self, data: bytes) -> None:
        """Write a chunk of the body; nothing for no bytes, which would end it."""
        if data:
            await self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    async def end(self) -> None:
        """End the body, where one is open."""
        if self.chunked and self.connection.open:
            await self.raw(b"0\r\n\r\n")
