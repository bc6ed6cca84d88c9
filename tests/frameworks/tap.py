"""A tap between a client and any base URL: what the client asked for, and what came back to it.

Of a reply it keeps the text of its deltas, or the body of a whole one, once the client's socket has
taken it: what was read is counted as the endpoint itself counts.
"""

import contextlib
import json
import socket
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

from loopguard.runaway import MAX_REQUEST_BYTES, SEND_BUFFER_BYTES, until_taken

GENERATING = ("/chat/completions", "/responses", "/messages", "/completions")
CAP_KEYS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
NOT_RELAYED = {
    "host",
    "connection",
    "content-length",
    "transfer-encoding",
    "accept-encoding",  # compressed, the text could not be counted
    "expect",
}


@dataclass(slots=True)
class Request:
    """One request for a reply.

    Attributes:
        path: below the base URL.
        stream: whether a stream was asked for.
        cap: tokens of output asked for at most; None where no cap was asked for.
        status: of the response.
        texts: of the reply, as far as the client's socket took it.
    """

    path: str
    stream: bool
    cap: int | None
    status: int = 0
    texts: list[str] = field(default_factory=list)

    def chars_of(self, unit: str) -> int:
        """Characters of the reply that are whole repetitions of a text."""
        return "".join(self.texts).count(unit) * len(unit)


@dataclass
class Tap:
    """Relays to a base URL and keeps a record of each request for a reply.

    Attributes:
        target: the base URL.
        requests: those for a reply, in the order in which they came.
    """

    target: str
    requests: list[Request] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Listen on a free port of the loopback address; yields the origin."""
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        app = web.Application(client_max_size=MAX_REQUEST_BYTES)
        app.router.add_route("*", "/v1{path:/.*}", self._relay)
        runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1
        )
        await runner.setup()
        await web.SockSite(runner, listener).start()
        async with aiohttp.ClientSession(
            auto_decompress=False,
            read_bufsize=SEND_BUFFER_BYTES,
            timeout=aiohttp.ClientTimeout(total=None),
        ) as self._session:
            try:
                yield f"http://127.0.0.1:{listener.getsockname()[1]}"
            finally:
                await runner.cleanup()

    async def _relay(self, asked: web.Request) -> web.StreamResponse:
        body = await asked.read()
        path = asked.match_info["path"]
        request = request_for(path, body)
        if asked.method == "POST" and path in GENERATING:
            self.requests.append(request)
        async with self._session.request(
            asked.method,
            self.target + asked.rel_url.raw_path.removeprefix("/v1"),
            params=asked.query,
            data=body,
            headers=relayed(asked.headers),
            skip_auto_headers=("Accept-Encoding",),
            allow_redirects=False,
        ) as answered:
            request.status = answered.status
            response = web.StreamResponse(status=answered.status, headers=relayed(answered.headers))
            await response.prepare(asked)
            with contextlib.suppress(ConnectionResetError):  # the client has left
                try:
                    await self._pump(answered, response, asked, request)
                except aiohttp.ClientError:  # a broken body is relayed as one
                    if asked.transport is not None:
                        asked.transport.abort()
        return response

    async def _pump(
        self,
        answered: aiohttp.ClientResponse,
        response: web.StreamResponse,
        asked: web.Request,
        request: Request,
    ) -> None:
        line = b""
        async for chunk in answered.content.iter_any():
            await response.write(chunk)
            await until_taken(asked)
            *lines, line = (line + chunk).split(b"\n")
            if request.stream:
                request.texts += map(delta_text, lines)
            else:
                request.texts.append(chunk.decode(errors="replace"))
        await response.write_eof()


def delta_text(line: bytes) -> str:
    """The text that a line of a stream brings, on any wire; none where it repeats what came."""
    if not line.startswith(b"data: {"):
        return ""
    event = json.loads(line.removeprefix(b"data: "))
    deltas = [holder.get("delta", "") for holder in (event, *event.get("choices", ()))]
    return "".join(
        delta if isinstance(delta, str) else delta.get("content") or delta.get("text") or ""
        for delta in deltas
    )


def request_for(path: str, body: bytes) -> Request:
    """What a body asks for; of one that is no JSON object, nothing is known."""
    try:
        asked = dict(json.loads(body))
    except (ValueError, TypeError):
        asked = {}
    cap = next((asked[key] for key in CAP_KEYS if asked.get(key) is not None), None)
    return Request(path, asked.get("stream") is True, cap)


def relayed(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    """The headers of one side as the other is told them."""
    return [(name, value) for name, value in headers.items() if name.lower() not in NOT_RELAYED]
