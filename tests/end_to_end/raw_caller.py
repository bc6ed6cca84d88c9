"""A caller on a raw socket, who sees every byte and leaves when it pleases."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from tests.end_to_end.conftest import Guarded

CHAT = "/v1/chat/completions"
REQUEST: dict[str, Any] = {"model": "m/x", "messages": [{"role": "user", "content": "hello"}]}
STREAM = REQUEST | {"stream": True}

# No test here takes a tenth of it; one that hangs says where.
PATIENCE_S = 60.0


def asked(mode: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The body and the headers of a caller who is served `held`, `live` or `whole`."""
    if mode == "whole":
        return REQUEST, {}
    return STREAM, {"X-Loopguard-Relay": {"held": "hold", "live": "live"}[mode]}


def content_of(body: bytes) -> str:
    """What a reply says that came whole, or as a stream with its sentinel."""
    if not body.startswith((b":", b"data:")):
        return str(json.loads(body)["choices"][0]["message"]["content"])
    assert b"data: [DONE]" in body, body
    chunks = [
        json.loads(event.removeprefix(b"data: "))
        for event in body.split(b"\n\n")
        if event.startswith(b"data: {")
    ]
    return "".join(
        choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]
    )


class RawCaller:
    """One connection and the response that comes on it.

    Attributes:
        status: of the response, once its head has been read.
        headers: likewise, by lower-case name.
        body: what has been read of the body, without its framing.
        ended: whether the body came to its proper end.
        left_at: when the caller left, monotonic seconds.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.ended = False
        self.left_at = 0.0
        self._reader = reader
        self._writer = writer

    async def send(
        self,
        body: bytes | Mapping[str, Any] = b"",
        *,
        method: str = "POST",
        path: str = CHAT,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send a request."""
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = {"Host": "loopguard", "Content-Length": str(len(payload))} | dict(headers or {})
        text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        await self.write(f"{method} {path} HTTP/1.1\r\n{text}\r\n".encode() + payload)

    async def write(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._writer.write(data)
        await self._writer.drain()

    async def head(self) -> int:
        """Read the head and return its status."""
        if not self.status:
            first, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            self.status = int(first.split()[1])
            for name, _, value in (line.partition(": ") for line in lines if line):
                self.headers[name.lower()] = value
        return self.status

    async def until(self, needle: bytes) -> bytearray:
        """Read the body until the needle is in it."""
        while needle not in self.body:
            await self._read_on()
            assert not self.ended or needle in self.body, self.body
        return self.body

    async def whole(self) -> bytearray:
        """Read the body to its end."""
        while not self.ended:
            await self._read_on()
        return self.body

    async def _read_on(self) -> None:
        await self.head()
        if self.headers.get("transfer-encoding") == "chunked":
            size = int(await self._reader.readuntil(b"\r\n"), 16)
            self.body += (await self._reader.readexactly(size + 2))[:-2]
            self.ended = size == 0
        else:
            self.body += await self._reader.readexactly(int(self.headers["content-length"]))
            self.ended = True

    @property
    def error(self) -> dict[str, Any]:
        """The error of the body, or of its last event."""
        *_, last = self.body.rstrip().split(b"\n\n")
        error = json.loads(last.removeprefix(b"data: "))["error"]
        assert isinstance(error, dict)
        return error

    def leave(self) -> None:
        """Close the connection."""
        self.left_at = time.monotonic()
        self._writer.close()


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[RawCaller]:
    """A caller with a connection, closed at the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield RawCaller(reader, writer)
    finally:
        writer.close()


@asynccontextmanager
async def calling(
    guarded: Guarded,
    body: bytes | Mapping[str, Any] = REQUEST,
    headers: Mapping[str, str] | None = None,
    *,
    path: str = CHAT,
    method: str = "POST",
) -> AsyncIterator[RawCaller]:
    """A caller who has sent a request."""
    async with connected(guarded.loopguard.api_port) as caller:
        await caller.send(body, method=method, path=path, headers=headers)
        yield caller


async def ask(
    guarded: Guarded,
    body: bytes | Mapping[str, Any] = REQUEST,
    headers: Mapping[str, str] | None = None,
    *,
    path: str = CHAT,
    method: str = "POST",
) -> RawCaller:
    """A caller who has read the whole response."""
    async with calling(guarded, body, headers, path=path, method=method) as caller:
        await caller.whole()
    return caller


async def turning_until(condition: Callable[[], bool]) -> None:
    """Let the event loop turn until it is so."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - each turn may make it true, no clock does
            await asyncio.sleep(0)


async def metrics(admin: str) -> dict[str, float]:
    """Every series of the operators' listener, summed over its labels; `name{outcome}` apart."""
    async with aiohttp.ClientSession() as session, session.get(f"{admin}/metrics") as response:
        text = await response.text()
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            for name in {sample.name, f"{sample.name}{{{sample.labels.get('outcome')}}}"}:
                sums[name] = sums.get(name, 0.0) + sample.value
    return sums
