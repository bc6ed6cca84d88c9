"""What an answer of the fake is made of: steps, and ready-made refusals.

A step is either bytes, which leave as one chunk of the response's body, or a coroutine function of
the `Line`, which may do anything that an upstream does to a connection. An answer is a sequence of
steps; lists of steps are sliced and joined as any list:

    events = list(Reply("hello").events())         # comments, chunks, sentinel
    [head(), *events[:3], stall]               # silent in mid-stream
    [head(), *events[:3], events[3][:40], reset]   # torn in mid-event
    [head(), *events[:3], wait(gate), *events[3:]] # until the test says so
    [split_every(1), head(), *events]          # byte by byte

An answer that runs to its end finishes the body properly and keeps the connection for the next
request. Without `[DONE]` among its bytes it is the clean end of an upstream that gave up.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from tests.fake_openrouter.chat import GENERATION_ID, compact
from tests.fake_openrouter.line import Line

Step = bytes | Callable[[Line], Awaitable[None]]


def head(
    status: int = 200,
    content_type: str = "text/event-stream",
    headers: dict[str, str] | None = None,
) -> Step:
    """The head of a response with the headers that OpenRouter was recorded to send."""
    lines = {
        "Date": "Fri, 02 Oct 2026 10:00:00 GMT",
        "Content-Type": content_type,
        "Transfer-Encoding": "chunked",
        "Connection": "keep-alive",
        "CF-RAY": "8f0000000000abcd-FRA",
        "Access-Control-Allow-Origin": "*",
        "Access-Control-Expose-Headers": "X-Generation-Id,X-Provider-Name,request-id,cf-ray",
        "Cache-Control": "no-cache",
        "Permissions-Policy": 'payment=(self "https://checkout.stripe.com")',
        "Referrer-Policy": "no-referrer, strict-origin-when-cross-origin",
        "X-Content-Type-Options": "nosniff",
        "X-Generation-Id": GENERATION_ID,
        "set-cookie": "__cf_bm=fake; HttpOnly; Secure; Path=/",
        "Server": "cloudflare",
    } | (headers or {})
    text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    reason = HTTPStatus(status).phrase if status in set(HTTPStatus) else ""

    async def play(line: Line) -> None:
        line.chunked = True
        await line.raw(f"HTTP/1.1 {status} {reason}\r\n{text}\r\n".encode())

    return play


def raw(data: bytes) -> Step:
    """Bytes as they are: half a head, broken framing, another protocol."""
    return lambda line: line.raw(data)


def wait(event: asyncio.Event) -> Step:
    """Silence until the test sets the event."""

    async def play(_: Line) -> None:
        await event.wait()

    return play


async def stall(_: Line) -> None:
    """Silence for ever; the test or its caller ends it."""
    await asyncio.Event().wait()


async def close(line: Line) -> None:
    """End the connection with the body unfinished."""
    line.connection.close()


async def reset(line: Line) -> None:
    """Tear the connection down, once what was written has arrived: a reset would discard it."""
    while line.connection.open and line.connection.untaken_bytes:  # noqa: ASYNC110 - the kernel's
        await asyncio.sleep(0)
    line.connection.reset()


def split_every(size_bytes: int) -> Step:
    """From here on each write is cut into pieces of this size, TCP segments of their own."""

    async def play(line: Line) -> None:
        line.split_bytes = size_bytes

    return play


def pace(seconds: float) -> Step:
    """From here on the fake rests so long after each write."""

    async def play(line: Line) -> None:
        line.pace_s = seconds

    return play


MESSAGES = {
    400: "x/y is not a valid model ID",
    401: "No cookie auth credentials found",
    402: "This request requires more credits, or fewer max_tokens.",
    404: "No endpoints found matching your data policy",
    429: "Provider returned error",
}
UPSTREAM_429 = {
    "raw": "google/gemma-4-31b-it:free is temporarily rate-limited upstream.",
    "provider_name": "Google AI Studio",
    "is_byok": False,
    "provider_error_code": "429",
    "limit_source": "upstream_provider_shared_pool",
}


@dataclass(frozen=True)
class Refusal:
    """An error before the stream: the status is the error's code, its body JSON.

    Attributes:
        status: of the response.
        retry_after: seconds of the `Retry-After` header; None for no header.
        message: of the error; one that was recorded where none is given.
        metadata: of the error.
        headers: further headers of the response.
    """

    status: int
    retry_after: int | None = None
    message: str | None = None
    metadata: dict[str, Any] | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def steps(self) -> Sequence[Step]:
        """The answer. It carries a generation id, which never resolves, as OpenRouter's do."""
        headers = dict(self.headers)
        if self.retry_after is not None:
            headers["Retry-After"] = str(self.retry_after)
        error: dict[str, Any] = {
            "message": self.message or MESSAGES.get(self.status, "Internal Server Error"),
            "code": self.status,
        }
        metadata = self.metadata or (
            UPSTREAM_429 if self.status == HTTPStatus.TOO_MANY_REQUESTS else None
        )
        if metadata is not None:
            error["metadata"] = metadata
        body = compact({"error": error, "user_id": "user_fake"}).encode()
        return [head(self.status, "application/json", headers), body]
