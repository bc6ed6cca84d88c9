"""The endpoint behind the measured relays: OpenRouter's chunks, at a pace or as fast as they go.

A request's model names its load: `paced/CHUNKS/TEXT` or `bulk/CHUNKS/TEXT`. Everything is framed
before the first request, and a chunk costs one timer and one write.
"""

import argparse
import asyncio
import json
from pathlib import Path

import uvloop

from tests.fake_openrouter import GENERATION_ID, Reply

CHUNKS_PER_S = 50
TEXTS = 8
# Of an event: what OpenRouter was recorded to send for a short model name and one token.
DELTA_CHARS = 5
MODEL = "deepseek/deepseek-chat-v3.1-20250821"
PROVIDER = "DeepInfra / Turbo"

MAX_CHUNKS = 10_000
BULK_WRITE_FRAMES = 200

REPOSITORY = Path(__file__).parents[2]
HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
    b"Transfer-Encoding: chunked\r\nConnection: keep-alive\r\n"
    b"X-Generation-Id: " + GENERATION_ID.encode() + b"\r\n\r\n"
)


def frame(event: bytes) -> bytes:
    """One chunk of a response's body."""
    return b"%x\r\n%b\r\n" % (len(event), event)


def ordinary_texts() -> list[str]:
    """Texts that people wrote, each beginning elsewhere."""
    sources = [REPOSITORY / "LICENSE", *sorted(REPOSITORY.glob("docs/*.md"))]
    prose = "\n".join(source.read_text() for source in sources)
    starts = [len(prose) * number // TEXTS for number in range(TEXTS)]
    chars = MAX_CHUNKS * DELTA_CHARS
    return [((prose[start:] + prose) * (chars // len(prose) + 1))[:chars] for start in starts]


class Script:
    """One text, framed: its content chunk by chunk, and what ends the stream."""

    def __init__(self, text: str) -> None:
        reply = Reply(text, model=MODEL, provider=PROVIDER, comments=0, delta_chars=DELTA_CHARS)
        frames = [frame(event) for event in reply.events()]
        self.content = frames[:-3]
        self.ending = b"".join(frames[-3:]) + b"0\r\n\r\n"  # finish, usage, sentinel


class Endpoint(asyncio.Protocol):
    """One connection of a relay."""

    def __init__(self, scripts: list[Script]) -> None:
        self._scripts = scripts
        self._loop = asyncio.get_running_loop()
        self._received = b""
        self._paused = False
        self._sent = 0
        self._chunks = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A relay connects."""
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """The relay leaves, with or without all it asked for."""
        self._chunks = 0

    def data_received(self, data: bytes) -> None:
        """Wait for the whole request, then answer it."""
        self._received += data
        head, ended, body = self._received.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        if not ended or len(body) < int(length):
            return
        self._received = b""
        load, chunks, text = json.loads(body)["model"].split("/")
        self._script = self._scripts[int(text)]
        self._sent, self._chunks = 0, int(chunks)
        self._transport.write(HEAD)
        if load == "paced":
            self._began_at = self._loop.time()
            self._send_one()
        else:
            self._send_many()

    def _send_one(self) -> None:
        if self._sent == self._chunks:
            self._transport.write(self._script.ending)
            return
        self._transport.write(self._script.content[self._sent])
        self._sent += 1
        self._loop.call_at(self._began_at + self._sent / CHUNKS_PER_S, self._send_one)

    def _send_many(self) -> None:
        while not self._paused and self._sent < self._chunks:
            until = min(self._sent + BULK_WRITE_FRAMES, self._chunks)
            self._transport.write(b"".join(self._script.content[self._sent : until]))
            self._sent = until
            if until == self._chunks:
                self._transport.write(self._script.ending)

    def pause_writing(self) -> None:
        """The relay does not take what there is."""
        self._paused = True

    def resume_writing(self) -> None:
        """It does again. A paced stream is never so far behind."""
        self._paused = False
        self._send_many()


async def serve(port: int) -> None:
    """Serve for ever."""
    scripts = [Script(text) for text in ordinary_texts()]
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Endpoint(scripts), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    uvloop.run(serve(parser.parse_args().port))
