"""The measure: the relay that anyone writes in 40 lines of aiohttp, which watches nothing."""

import argparse

import aiohttp
import uvloop
from aiohttp import web


class Passthrough:
    """Passes every request on to one upstream, and what comes back to the caller."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream

    async def connect(self, _: web.Application) -> None:
        """Open the session."""
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Relay one exchange."""
        async with self._session.post(
            self._upstream + request.path,
            data=await request.read(),
            headers={"Content-Type": request.content_type},
        ) as upstream:
            response = web.StreamResponse(status=upstream.status)
            response.content_type = upstream.content_type
            await response.prepare(request)
            async for piece in upstream.content.iter_any():
                await response.write(piece)
            await response.write_eof()
            return response


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("upstream")
    arguments = parser.parse_args()
    passthrough = Passthrough(arguments.upstream)
    app = web.Application()
    app.on_startup.append(passthrough.connect)
    app.router.add_post("/{path:.*}", passthrough.handle)
    uvloop.install()
    web.run_app(app, host="127.0.0.1", port=arguments.port, access_log=None, print=None)
