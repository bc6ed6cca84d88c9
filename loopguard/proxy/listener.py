"""What a peer may take of a listener before it has asked for anything.

Theory. A connection costs memory and a file descriptor, and its peer pays nothing for it. So each
listener has so many connections and no more, a request's head has to be complete in a time that
does not begin anew with every byte, and a connection without a request is closed after a while.
Whoever is refused for that reads an error in the form of the API wherever HTTP still permits one.

What is no HTTP is refused by aiohttp's parser; its message is not passed on, since it quotes what
was sent, a header's value included, and nothing is logged of it, since anybody can send a thousand
of them in a second: the metrics count them.

Blind spots: a head that begins behind a request that is being served has the time of an idle
connection, since nothing tells where the bytes of the one end and of the other begin. A caller who
sends its body slowly is told so by `arriving`, one who does not read by the exchange's own time.
"""

import asyncio
import resource
from collections.abc import AsyncIterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol, cast

from aiohttp import HttpVersion10, HttpVersion11, StreamReader, web
from aiohttp.http_exceptions import LineTooLong

from loopguard.core.dialects import chat
from loopguard.errors import (
    HeadTooLarge,
    InvalidRequest,
    LoopguardError,
    MethodNotAllowed,
    PathNotFound,
    SlowCaller,
    TooManyConnections,
)
from loopguard.proxy.caller import error_headers, error_response

# The parser reads others as well, and 0.9 where none is named.
_VERSIONS = (HttpVersion10, HttpVersion11)

BACKLOG = 1024
"""Connections that wait to be accepted. One more is tried again by its peer's system, after a whole
second, so the least pause of ours under a rush would delay callers by that much."""

# A body that comes more slowly uses its time up: a mobile line at its worst has twice as much.
_SLOWEST_BYTES_PER_S = 10_000

# Time for a peer that was turned away to read why, and how many may be in the midst of that.
_FAREWELL_S = 1.0
_MAX_FAREWELLS = 64

# What is left of a refused body is read for so long, since many callers read only once they have
# written; a caller who has not ended by then is closed in the middle of it.
_LINGERING_S = 2.0

# aiohttp would name its version, and Python's.
_NAME = "loopguard"

# A connection and its upstream's.
_FILES_PER_CONNECTION = 2

# The operators' listener, farewells, the ledger, idle connections to the upstream, the log.
_OTHER_FILES = 1024


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the peers of a listener may take.

    Attributes:
        max_connections: open at once.
        head_timeout_s: from the first byte of a request to the end of its head.
        idle_timeout_s: of a connection without a request.
    """

    max_connections: int
    head_timeout_s: float
    idle_timeout_s: float


class PeerMetrics(Protocol):
    """Counts the peers of a listener."""

    def connection_opened(self) -> None:
        """A connection is served."""

    def connection_closed(self) -> None:
        """A connection that was served is closed."""

    def request_refused(self, reason: str) -> None:
        """A peer was refused, with the error of this name."""


class BoundedRunner(web.AppRunner):
    """Runs an application for peers that may take so much and no more.

    Args:
        application: serves the requests.
        bounds: of what its peers may take.
        metrics: count them.
        settings: further ones of `aiohttp.web.AppRunner`.
    """

    def __init__(
        self,
        application: web.Application,
        bounds: Bounds,
        metrics: PeerMetrics,
        **settings: Any,
    ) -> None:
        super().__init__(application, **settings)
        self._bounds = bounds
        self._metrics = metrics
        application.on_response_prepare.append(_name_no_version)

    @property
    def connections(self) -> int:
        """How many are open."""
        return self.server.open if isinstance(self.server, _Listener) else 0

    async def _make_server(self) -> web.Server:
        plain = await super()._make_server()
        return _Listener(plain, self._bounds, self._metrics)


async def _name_no_version(_: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = _NAME


class _Listener(web.Server):
    """Makes the connections' protocols, and knows how many there are.

    Args:
        plain: the application's own server.
        bounds: of what its peers may take.
        metrics: count them.
    """

    def __init__(self, plain: web.Server, bounds: Bounds, metrics: PeerMetrics) -> None:
        super().__init__(
            self._serve,
            request_factory=plain.request_factory,
            handler_cancellation=plain.handler_cancellation,
        )
        self._handle = plain.request_handler
        self.bounds = bounds
        self.open = 0
        self.farewells = 0
        self._metrics = metrics

    def __call__(self) -> "_Connection":
        return _Connection(self)

    def opened(self) -> None:
        """A connection is served."""
        self.open += 1
        self._metrics.connection_opened()

    def closed(self) -> None:
        """A connection that was served is closed."""
        self.open -= 1
        self._metrics.connection_closed()

    def refused(self, error: LoopguardError) -> None:
        """A peer was refused before there was a request."""
        self._metrics.request_refused(error.error_type)

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = cast("_Connection", request.protocol)
        if request.version not in _VERSIONS:
            return connection.refuse(_NO_HTTP)
        connection.begin_request()
        try:
            return await self._handle(request)
        except (web.HTTPNotFound, web.HTTPMethodNotAllowed) as routed:
            error = _REFUSALS[type(routed)]
            self.refused(error)
            return error_response(error, chat.error_body(error))
        finally:
            connection.end_request(request.content)


class _Connection(web.RequestHandler):
    """One connection; turned away where there are too many, closed where its head is late."""

    __slots__ = ("_head_due", "_last_body", "_listener", "_serving", "_turned_away")

    def __init__(self, listener: _Listener) -> None:
        super().__init__(
            listener,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=listener.bounds.idle_timeout_s,
            lingering_time=_LINGERING_S,
            auto_decompress=False,  # before a token is asked for, and with no bound but its own
            access_log=None,  # type: ignore[arg-type]  # aiohttp's own way to have none
        )
        self._listener = listener
        self._head_due: asyncio.TimerHandle | None = None
        self._last_body: StreamReader | None = None
        self._serving = False
        self._turned_away = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Serve the peer, or tell it that there are too many."""
        listener = self._listener
        if listener.open >= listener.bounds.max_connections:
            self._turn_away(cast("asyncio.Transport", transport))
            return
        listener.opened()
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Give back what the connection took."""
        if self._turned_away:
            self._listener.farewells -= 1
        else:
            self._listener.closed()
            self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what has come; the first bytes of a head begin its time."""
        begins = (
            self._head_due is None
            and not self._serving
            and not self._turned_away
            and (self._last_body is None or self._last_body.is_eof())
        )
        super().data_received(data)
        if begins and data:
            self._head_due = asyncio.get_running_loop().call_later(
                self._listener.bounds.head_timeout_s, self._give_up_on_head
            )

    def begin_request(self) -> None:
        """A head is complete, and what it asks is being served."""
        self._serving = True
        self._stop_waiting()

    def end_request(self, body: StreamReader) -> None:
        """The answer is made; what comes behind the body is another head."""
        self._serving = False
        self._last_body = body

    def refuse(self, error: LoopguardError) -> web.Response:
        """Answer whatever has come with an error of HTTP/1.1, and close."""
        self._stop_waiting()
        self._listener.refused(error)
        if self.transport is not None:
            self.transport.write(_answer(error))
            self.force_close()
        return web.Response()  # which goes nowhere

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Refuse what is no HTTP in the form of the API; a fault of ours is aiohttp's to tell."""
        self._stop_waiting()
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return super().handle_error(request, status, exc, message)
        error = _TOO_LARGE if isinstance(exc, LineTooLong) else _NO_HTTP
        self._listener.refused(error)
        response = error_response(error, chat.error_body(error))
        response.headers["Server"] = _NAME
        response.headers["Connection"] = "close"
        response.force_close()
        return response

    def log_exception(self, *args: Any, **more: Any) -> None:
        """Log a fault of ours; a body that breaks while it is passed over is the peer's."""
        if not isinstance(more.get("exc_info"), web.RequestPayloadError):
            super().log_exception(*args, **more)

    def _stop_waiting(self) -> None:
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None

    def _give_up_on_head(self) -> None:
        self._head_due = None
        if not self._serving and self.transport is not None:
            self._listener.refused(_SLOW_HEAD)
            self._bid_farewell(self.transport, _SLOW_HEAD)

    def _turn_away(self, transport: asyncio.Transport) -> None:
        listener = self._listener
        listener.refused(_TOO_MANY)
        self._turned_away = True
        listener.farewells += 1
        if listener.farewells > _MAX_FAREWELLS:
            transport.abort()
        else:
            self._bid_farewell(transport, _TOO_MANY)

    def _bid_farewell(self, transport: asyncio.Transport, error: LoopguardError) -> None:
        """Answer, and give the peer a moment to read it: a reset would take it away."""
        self.close()  # what still comes is passed over
        transport.write(_answer(error))
        transport.write_eof()
        asyncio.get_running_loop().call_later(_FAREWELL_S, transport.abort)


_NO_HTTP = InvalidRequest("this is no request of HTTP/1.1 that loopguard understands")
_REFUSALS: dict[type[web.HTTPException], LoopguardError] = {
    web.HTTPNotFound: PathNotFound("there is nothing at this path"),
    web.HTTPMethodNotAllowed: MethodNotAllowed("this path does not take this method"),
}
_TOO_LARGE = HeadTooLarge("the request's first line, or one of its headers, is too long")
_SLOW_HEAD = SlowCaller("the head of the request did not arrive in time")
_TOO_MANY = TooManyConnections("loopguard has too many connections", retry_after_s=1)


def _answer(error: LoopguardError) -> bytes:
    """A whole response to a peer that has no request."""
    body = chat.error_body(error)
    status = HTTPStatus(error.status)
    headers = [
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(body))),
        ("Connection", "close"),
        ("Server", _NAME),
        *error_headers(error),
    ]
    lines = [f"HTTP/1.1 {status.value} {status.phrase}", *(f"{n}: {v}" for n, v in headers)]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def arriving(content: StreamReader, patience_s: float) -> AsyncIterator[bytes]:
    """The pieces of a request's body, as they come.

    Args:
        content: the body.
        patience_s: what its pieces may make us wait, of which each gives back the time that it
            would have taken at the slowest rate that is borne.

    Raises:
        SlowCaller: it has taken that, and more has not come.
    """
    loop = asyncio.get_running_loop()
    left_s = patience_s
    while not content.is_eof():
        began_at = loop.time()
        try:
            async with asyncio.timeout(left_s):
                piece = await content.readany()
        except TimeoutError:
            raise SlowCaller("the body of the request did not arrive in time") from None
        waited_s = loop.time() - began_at
        left_s = min(patience_s, left_s - waited_s + len(piece) / _SLOWEST_BYTES_PER_S)
        if piece:
            yield piece
    # Most bodies are here with their head: nothing is waited for, and no clock is set.
    if rest := content.read_nowait():
        yield rest


def connections_that_fit(wanted: int) -> int:
    """Make room for so many connections among the process's files; tell for how many there is."""
    files = wanted * _FILES_PER_CONNECTION + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= files:
        return wanted
    allowed = files if hard == resource.RLIM_INFINITY else min(files, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return max(1, (allowed - _OTHER_FILES) // _FILES_PER_CONNECTION)
