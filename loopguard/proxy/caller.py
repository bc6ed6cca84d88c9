"""The caller's side of one exchange: its head, its bytes, and the comments that keep it open."""

import asyncio
import contextlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import ceil

from aiohttp import HttpVersion11, web

from loopguard.core import sse
from loopguard.errors import LoopguardError

# What a transport takes before it asks its writers to wait, as asyncio and uvloop set it.
_MAX_UNSENT_BYTES = 65_536

_KEEP_ALIVE = sse.comment("loopguard keep-alive")

# Nothing between us and the caller may store, change or collect a stream.
_STREAM_HEADERS = (
    ("Content-Type", "text/event-stream; charset=utf-8"),
    ("Cache-Control", "no-cache, no-transform"),
    ("X-Accel-Buffering", "no"),
)
_STREAM_HEADER_NAMES = frozenset(name.lower() for name, _ in _STREAM_HEADERS)


class CallerGone(Exception):
    """The caller's connection is closed."""


class Caller:
    """Answers one request, once.

    Args:
        request: the caller's.
        keepalive_s: seconds without a byte after which an open stream gets a comment; 0 for none.
            The head does not leave before the first one is due, so early failures keep their
            status.
    """

    def __init__(self, request: web.Request, keepalive_s: float) -> None:
        self._request = request
        self._keepalive_s = keepalive_s
        self._loop = asyncio.get_running_loop()
        self._response: web.StreamResponse | None = None
        self._transport: asyncio.Transport | None = None
        self._opening = asyncio.Lock()
        self._written_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._comment: asyncio.Task[None] | None = None

    @property
    def opened(self) -> bool:
        """Whether the head of a stream has left."""
        return self._response is not None

    @property
    def gone(self) -> bool:
        """Whether the caller's connection is closed."""
        return self._request.transport is None or self._request.transport.is_closing()

    def abandon(self) -> None:
        """Close the caller's connection, whatever it has not taken yet."""
        if self._request.transport is not None:
            self._request.transport.abort()

    async def write(self, data: bytes, headers: Iterable[tuple[str, str]] = ()) -> None:
        """Write to the stream.

        Args:
            data: whole events.
            headers: of the response, if its head has not left yet.

        Raises:
            CallerGone: the caller's connection is closed.
        """
        self._written_at = self._loop.time()
        try:
            response = self._response or await self._open(headers)
            await response.write(data)
        except ConnectionError:
            raise CallerGone from None
        if "Transfer-Encoding" in response.headers:  # not for a caller of HTTP/1.0
            self._transport = self._request.transport
        self._written_at = self._loop.time()

    def send(self, data: bytes) -> bool:
        """Write to the stream, past two coroutines of aiohttp's.

        Args:
            data: whole events, at least one byte.

        Returns:
            Whether it was written: the head has left, in HTTP/1.1, and the caller keeps up. Else
            `write` it.
        """
        transport = self._transport
        if (
            transport is None
            or transport.is_closing()
            or transport.get_write_buffer_size() > _MAX_UNSENT_BYTES
        ):
            return False
        transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        self._written_at = self._loop.time()
        return True

    async def _open(self, headers: Iterable[tuple[str, str]]) -> web.StreamResponse:
        async with self._opening:
            if self._response is None:
                response = web.StreamResponse()
                _add_stream_headers(response, headers)
                await response.prepare(self._request)
                self._response = response
            return self._response

    async def close(
        self, data: bytes, headers: Iterable[tuple[str, str]] = ()
    ) -> web.StreamResponse:
        """End the stream; one that has not begun leaves in one write, its head included.

        Args:
            data: the last of its events.
            headers: of the response, if its head has not left yet.

        Raises:
            CallerGone: the caller's connection was closed before the last of its events.
        """
        self._stop_comments()
        if self._response is None:
            whole = web.Response(body=data)
            _add_stream_headers(whole, headers)
            if self._request.version == HttpVersion11:
                whole.enable_chunked_encoding()
            return await self.answer(whole)
        try:
            await self._response.write_eof(data)
        except ConnectionError:
            if data:
                raise CallerGone from None
        return self._response

    async def answer(self, response: web.StreamResponse) -> web.StreamResponse:
        """Send a response that is no stream, and wait until the caller has taken it.

        The server would send it after the exchange, whose time limit would be over by then.

        Raises:
            CallerGone: the caller's connection is closed.
        """
        if self._response is None:
            self._stop_comments()  # one would begin a second response behind this one's head
            try:
                await response.prepare(self._request)
                await response.write_eof()
            except ConnectionError:
                raise CallerGone from None
        return response

    @contextmanager
    def kept_alive(self) -> Iterator[None]:
        """Send comments while nothing else is sent."""
        if self._keepalive_s:
            self._timer = self._loop.call_later(self._keepalive_s, self._look)
        try:
            yield
        finally:
            self._stop_comments()

    def _stop_comments(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._comment is not None:
            self._comment.cancel()

    def _look(self) -> None:
        """Send a comment if one is due, and come back when the next one is."""
        now = self._loop.time()
        due_at = self._written_at + self._keepalive_s
        if due_at <= now:
            if self._comment is None or self._comment.done():  # else the caller takes nothing
                self._comment = self._loop.create_task(self._send_comment())
            due_at = now + self._keepalive_s
        self._timer = self._loop.call_at(due_at, self._look)

    async def _send_comment(self) -> None:
        # The exchange itself is cancelled when its caller leaves.
        with contextlib.suppress(CallerGone):
            await self.write(_KEEP_ALIVE)


def _add_stream_headers(response: web.StreamResponse, headers: Iterable[tuple[str, str]]) -> None:
    for name, value in headers:
        if name.lower() not in _STREAM_HEADER_NAMES:
            response.headers.add(name, value)
    response.headers.extend(_STREAM_HEADERS)


def error_headers(error: LoopguardError) -> list[tuple[str, str]]:
    """The headers that say whether and when to ask again."""
    headers = []
    if error.retry_after_s is not None:
        headers.append(("Retry-After", str(max(1, ceil(error.retry_after_s)))))
    if not error.retryable:
        # An SDK that asked again by itself would multiply what the exchange has cost.
        headers.append(("X-Should-Retry", "false"))
    return headers


def error_response(
    error: LoopguardError, body: bytes, headers: Iterable[tuple[str, str]] = ()
) -> web.Response:
    """Answer with an error of ours.

    Args:
        error: the failure.
        body: its body in the dialect of the request.
        headers: further headers.
    """
    response = web.Response(status=error.status, body=body, content_type="application/json")
    for name, value in (*headers, *error_headers(error)):
        response.headers[name] = value
    return response
