"""Callers of a relay that cost little: raw protocols that look for a few marks and keep nothing."""

import asyncio
import re
import time
from collections.abc import Iterable, Mapping

from tests.benchmarks.upstream import STAMP_CHARS, Asked

_END = b"0\r\n\r\n"
_STREAM_MARKS = b"data:", b"[DONE]"
_WHOLE_MARKS = b"{", b"}"
"""What a body begins with, and what stands in it before the end."""

_MARK_BYTES = 64
"""Of the end of what was read: holds the last event and the last frame."""

_STAMP = re.compile(rb"@(\d{%d})@" % STAMP_CHARS)


_KEY = {"Authorization": "Bearer of-no-account"}
"""What a caller of OpenRouter brings; with it loopguard asks for the prices of what it abandons."""


class CallFailed(Exception):
    """A relay did not deliver what it was asked for."""


class Caller(asyncio.Protocol):
    """Asks once and reads to the end.

    Args:
        request: all of it.
        marks: what its body begins with and ends on.
        stamped: whether chunks say when they were sent.

    Attributes:
        done: the end of the reply, or why there was none.
        first_ns: when its first event came, or the body of one that is no stream; 0 before.
        delays_ns: of the stamped chunks, from the upstream's stamp to here.
        left_ns: when it left; 0 where it did not.
    """

    def __init__(self, request: bytes, marks: tuple[bytes, bytes], *, stamped: bool) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.first_ns = 0
        self.left_ns = 0
        self.delays_ns: list[int] = []
        self._request = request
        self._beginning, self._ending = marks
        self._stamped = stamped
        self._head = b""
        self._missing: int | None = None
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Read, and keep only what tells that the reply is whole."""
        if not self.first_ns:
            data = self._begin(data)
        if self._stamped:
            now = time.monotonic_ns()
            self.delays_ns += [now - int(stamp) for stamp in _STAMP.findall(data)]
        if self._missing is not None:
            self._missing -= len(data)
            if self._missing <= 0:
                self._end(None)
            return
        self._tail = data[-_MARK_BYTES:] if len(data) >= _MARK_BYTES else self._tail + data
        if self._tail.endswith(_END):
            whole = self._ending in self._tail
            self._end(None if whole else CallFailed("a reply was ended early"))

    def _begin(self, data: bytes) -> bytes:
        """Read the head and what of the body is there."""
        self._head += data
        head, ended, body = self._head.partition(b"\r\n\r\n")
        if ended and not head.startswith(b"HTTP/1.1 200"):
            self._end(CallFailed(f"the answer was {self._head[:400]!r}"))
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        if not ended or self._beginning not in body:
            return b""
        self.first_ns = time.monotonic_ns()
        self._missing = int(length) if length else None
        return body

    def _end(self, failure: CallFailed | None) -> None:
        if not self.done.done():
            self.done.set_exception(failure) if failure else self.done.set_result(None)
        self._transport.close()

    def leave(self) -> None:
        """Close the connection in the middle of the reply."""
        self.left_ns = time.monotonic_ns()
        self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """The relay hung up, or this caller did."""
        if not self.done.done():
            self.done.set_exception(CallFailed(f"the relay hung up ({exc})"))


async def call(
    port: int, headers: Mapping[str, str], asked: Asked, *, stream: bool = True
) -> Caller:
    """Connect and ask."""
    body = asked.body(stream=stream)
    lines = ["POST /v1/chat/completions HTTP/1.1", "Host: 127.0.0.1"]
    lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in {**_KEY, **headers}.items()]
    request = "\r\n".join([*lines, "", ""]).encode() + body
    loop = asyncio.get_running_loop()
    marks = _STREAM_MARKS if stream else _WHOLE_MARKS
    _, caller = await loop.create_connection(
        lambda: Caller(request, marks, stamped=asked.stamped), "127.0.0.1", port
    )
    return caller


async def call_spread(
    port: int, headers: Mapping[str, str], many: Iterable[Asked], apart_s: float
) -> list[Caller]:
    """Connect one after the other."""
    callers = []
    for asked in many:
        callers.append(await call(port, headers, asked))
        await asyncio.sleep(apart_s)
    return callers


async def ended(callers: Iterable[Caller]) -> None:
    """Wait for all ends.

    Raises:
        CallFailed: of the first that failed.
    """
    await asyncio.gather(*(caller.done for caller in callers))


async def told(port: int, path: str) -> bytes:
    """The body of a small page of ours."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
    body = await reader.readexactly(int(length))
    writer.close()
    await writer.wait_closed()
    return body
