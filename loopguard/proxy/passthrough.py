"""Every path that is not guarded goes through untouched, streaming both ways."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
from aiohttp import web

from loopguard.errors import NotPassedOn, SlowCaller
from loopguard.proxy import headers as crossing
from loopguard.proxy.upstream import Upstream, why_unusable

# For a piece of some 64 kB, which the slowest line that is of use takes in a tenth of it.
_TAKING_S = 60.0


async def pass_through(
    request: web.Request, upstream: Upstream, path: str, arriving: AsyncIterator[bytes]
) -> web.StreamResponse:
    """Send the request on and its response back, as they come.

    Args:
        request: the caller's.
        upstream: where to.
        path: below the base URL, with its query.
        arriving: the request's body, as it comes.

    Raises:
        NotPassedOn: the upstream cannot be reached, or broke off before its head.
        SlowCaller: the body did not arrive in time, and no answer had begun.
        RequestPayloadError: the body broke off, likewise.
    """
    answered = False

    async def handed_on() -> AsyncIterator[bytes]:
        try:
            async for piece in arriving:
                yield piece
        except (SlowCaller, web.RequestPayloadError):
            # An answer that has begun is not told by aiohttp that its request has failed.
            if answered and request.transport is not None:
                request.transport.abort()
            raise

    body = handed_on() if request.can_read_body else None
    try:
        response = await upstream.open(
            request.method,
            path,
            request.headers,
            body,
            length_bytes=request.content_length,
            verbatim_body=True,
        )
    except (aiohttp.ClientError, TimeoutError) as error:
        if isinstance(error.__cause__, SlowCaller | web.RequestPayloadError):
            raise error.__cause__ from None
        raise NotPassedOn(why_unusable(error)) from None
    answered = True
    try:
        # The upstream's reason says nothing that the status does not, and may hold anything.
        answer = web.StreamResponse(status=response.status)
        for name, value in crossing.to_caller(response.headers, verbatim_body=True):
            answer.headers.add(name, value)
        await answer.prepare(request)
        async for chunk in response.content.iter_any():
            async with asyncio.timeout(_TAKING_S):
                await answer.write(chunk)
    except (aiohttp.ClientError, TimeoutError):
        # Whichever side broke off, or the caller takes nothing: it is not to take this for all.
        upstream.abandon(response)
        if request.transport is not None:
            request.transport.abort()
        return answer
    except BaseException:
        upstream.abandon(response)
        raise
    upstream.finish(response)
    return answer
