"""The connection to OpenRouter: where it is, with which key, and how a connection is given up."""

import asyncio
from collections.abc import AsyncIterable
from io import BytesIO
from types import TracebackType
from typing import TYPE_CHECKING, Self
from urllib.request import getproxies, proxy_bypass

import aiohttp
from yarl import URL

from loopguard.metrics import Metrics
from loopguard.proxy import headers as crossing

if TYPE_CHECKING:
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

# More than a round trip to the far side of the world.
_LAST_BYTES_S = 0.3


_FIRST_FINAL_STATUS = 200


def why_unusable(error: Exception) -> str:
    """One sentence on an upstream that could not be asked, without anything that it sent."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "the upstream's certificate is not one that is trusted here"
    return f"the upstream could not be used ({type(error).__name__})"


def environment_proxy(url: str) -> URL | None:
    """The proxy through which the environment has a URL asked, by HTTP_PROXY and its like.

    aiohttp's ``trust_env`` would read them at every request, and with them ``~/.netrc``, and send
    what stands there for the upstream's host.
    """
    target = URL(url)
    written = getproxies().get(target.scheme)
    if not written or target.host is None or proxy_bypass(target.host):
        return None
    return URL(written)


class _Connector(aiohttp.TCPConnector):
    """Reuses no connection on which something has come that nobody asked for.

    aiohttp would take it for the answer to the next request: a second response, sent by mistake or
    smuggled in, would be read by another caller.
    """

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list["Trace"],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - as aiohttp calls it
    ) -> "Connection":
        while True:
            connection = await super().connect(req, traces, timeout)
            if connection.protocol is None or not connection.protocol.should_close:
                return connection
            connection.close()


class Upstream:
    """Opens requests below the upstream's base URL.

    Args:
        base_url: the prefix that stands for the caller's ``/v1``.
        api_key: the operator's key; None to pass on the caller's own.
        connect_timeout_s: seconds for name, TCP and TLS.
        metrics: counts the requests that are open.
    """

    def __init__(
        self, base_url: str, api_key: str | None, connect_timeout_s: float, metrics: Metrics
    ) -> None:
        self._base_url = base_url.rstrip("/")
        self._api_key = api_key
        self._metrics = metrics
        self._session = aiohttp.ClientSession(
            connector=_Connector(limit=0),
            # Every other limit is of the exchange (loopguard.proxy.clocks): a timer of aiohttp's
            # would be armed anew at every read.
            timeout=aiohttp.ClientTimeout(total=None, connect=connect_timeout_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept", "Content-Type"),
            proxy=environment_proxy(base_url),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._session.close()

    def key(self, headers: crossing.Headers) -> str | None:
        """The key that a request with these headers is made with, None where it has none."""
        return self._api_key or crossing.credential(headers)

    async def open(
        self,
        method: str,
        path: str,
        headers: crossing.Headers,
        body: bytes | AsyncIterable[bytes] | None,
        *,
        length_bytes: int | None = None,
        verbatim_body: bool = False,
    ) -> aiohttp.ClientResponse:
        """Send a request and return its response once the head is there.

        Whoever opens a response ends it with `finish` or `abandon`.

        Args:
            method: HTTP method.
            path: below the base URL, with its query, encoded as the caller wrote it.
            headers: the caller's.
            body: bytes, or an asynchronous iterable of bytes.
            length_bytes: of a body that is iterated, where it is known.
            verbatim_body: whether the answer's body is passed on as it comes; else it is asked for
                uncompressed, and unpacked where it comes compressed all the same.

        Raises:
            aiohttp.ClientError: the upstream cannot be reached or answers no HTTP.
        """
        crossed = crossing.to_upstream(headers, self._api_key, verbatim_body=verbatim_body)
        if length_bytes is not None:
            crossed.append(("Content-Length", str(length_bytes)))
        self._metrics.upstream_opened()
        try:
            response = await self._session.request(
                method,
                URL(self._base_url + path, encoded=True),
                headers=crossed,
                data=BytesIO(body) if isinstance(body, bytes) else body,  # written piece by piece
                allow_redirects=False,  # the key goes to the operator's host alone
                auto_decompress=not verbatim_body,
            )
        except BaseException:
            self._metrics.upstream_closed()
            raise
        if response.status < _FIRST_FINAL_STATUS:
            # A caller, or a proxy before it, would take 101 for the beginning of a tunnel.
            self.abandon(response)
            raise aiohttp.ClientResponseError(response.request_info, ())
        return response

    def finish(self, response: aiohttp.ClientResponse) -> None:
        """Give back the connection of a response that was read to its sentinel.

        The end of the body may come a moment after the sentinel. It is given that moment, since a
        connection that is closed costs the next request a handshake.
        """
        if response.content.is_eof():
            self._release(response)
        else:
            asyncio.get_running_loop().call_later(_LAST_BYTES_S, self._release, response)

    def _release(self, response: aiohttp.ClientResponse) -> None:
        self._metrics.upstream_closed()
        response.release()

    def abandon(self, response: aiohttp.ClientResponse) -> None:
        """Close the TCP connection now, whatever is still on its way."""
        self._metrics.upstream_closed()
        if response.connection is not None and response.connection.transport is not None:
            response.connection.transport.abort()
        response.close()
