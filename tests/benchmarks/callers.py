"""Callers of a relay that cost little: raw protocols that only look for the end of the reply."""

import asyncio
import json

from tests.benchmarks.upstream import CHUNKS_PER_S, TEXTS

END = b"0\r\n\r\n"
SENTINEL = b"[DONE]"


class Caller(asyncio.Protocol):
    """Asks once and reads to the end.

    Attributes:
        done: the end of the reply, or why there was none.
    """

    def __init__(self, request: bytes) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._begun = False
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Read, and keep only what tells that the reply is whole."""
        if not self._begun:
            self._begun = True
            if not data.startswith(b"HTTP/1.1 200"):
                self.done.set_exception(AssertionError(f"the relay answered {data[:300]!r}"))
        self._tail = (self._tail + data)[-64:]
        if self._tail.endswith(END):
            if SENTINEL not in self._tail:
                self.done.set_exception(AssertionError("the relay ended a reply early"))
            if not self.done.done():
                self.done.set_result(None)
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The relay hung up."""
        if not self.done.done():
            self.done.set_exception(exc or AssertionError("the relay hung up"))


def request(path: str, headers: dict[str, str], load: str, chunks: int, text: int) -> bytes:
    """One request for a stream."""
    body = json.dumps(
        {
            "model": f"{load}/{chunks}/{text}",
            "messages": [{"role": "user", "content": "Write something that is long."}],
            "stream": True,
        }
    )
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += [f"Content-Length: {len(body)}", "", body]
    return "\r\n".join(lines).encode()


async def ask(port: int, headers: dict[str, str], load: str, streams: int, chunks: int) -> None:
    """Read so many streams at once, begun evenly over the time between two chunks.

    Raises:
        AssertionError: the relay did not deliver one of them.
    """
    loop = asyncio.get_running_loop()
    done = []
    for number in range(streams):
        asked = request("/v1/chat/completions", headers, load, chunks, number % TEXTS)
        _, caller = await loop.create_connection(
            lambda asked=asked: Caller(asked), "127.0.0.1", port
        )
        done.append(caller.done)
        await asyncio.sleep(1 / CHUNKS_PER_S / streams)
    await asyncio.gather(*done)
