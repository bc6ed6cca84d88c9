"""The endpoint behind the measured relays: OpenRouter's chunks, at a pace or as fast as they go.

The last message of a request is an `Asked`, so every relay hands it on. All texts are framed before
the first request: a chunk costs one timer and one write, in bulk a two-hundredth of a write.

    GET /counts     what was sent, which streams are silent, and when relays closed their connection
    GET /release    ends the silent streams
    GET of anything else    a record of a generation, as the ledger looks for it
"""

import argparse
import asyncio
import json
import time
from collections import Counter
from dataclasses import asdict, dataclass
from functools import lru_cache
from pydoc_data.topics import topics

import uvloop

from tests.fake_openrouter import GENERATION_ID, Reply
from tests.fake_openrouter import loop as looping
from tests.fake_openrouter.generations import record

TEXTS = 8
# Of an event: what OpenRouter was recorded to send for a short model name and one token.
DELTA_CHARS = 5
MODEL = "deepseek/deepseek-chat-v3.1-20250821"
PROVIDER = "DeepInfra / Turbo"

CHUNKS, FIRST_CHUNKS = 10_000, 49_900
"""Of a text, and of the first: just under the shipped backstop of 250,000 characters."""

LOOP_CHARS = 20_000
"""The shipped rules cut long before."""

_BULK_WRITE_FRAMES = 200

_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
    b"Transfer-Encoding: chunked\r\nConnection: keep-alive\r\n"
    b"X-Generation-Id: " + GENERATION_ID.encode() + b"\r\n\r\n"
)
_JSON_HEAD = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"

STAMP_CHARS = 19
"""Of a clock's nanoseconds."""


@dataclass(frozen=True)
class Asked:
    """What a caller wants of the upstream.

    Attributes:
        chunks: of the reply.
        per_s: how many of them a second; 0 for as many as are taken.
        text: which of the texts.
        stamped: whether each chunk says `@NANOSECONDS@`, of the monotonic clock, and not the text.
        ends: whether the stream ends after them; else it is silent until it is released.
        number: names the stream in `/counts`.
        loops: how many requests with this number are answered with a loop.
    """

    chunks: int
    per_s: float = 0
    text: int = 0
    stamped: bool = False
    ends: bool = True
    number: int = 0
    loops: int = 0

    def body(self, *, stream: bool = True) -> bytes:
        """A request's."""
        message = {"role": "user", "content": json.dumps(asdict(self))}
        return json.dumps({"model": MODEL, "messages": [message], "stream": stream}).encode()


def _frame(event: bytes) -> bytes:
    """One chunk of a response's body."""
    return b"%x\r\n%b\r\n" % (len(event), event)


def _json(answer: dict[str, object]) -> bytes:
    """A response that says it whole."""
    body = json.dumps(answer)
    return (_JSON_HEAD.format(len(body)) + body).encode()


def _reply(text: str) -> Reply:
    return Reply(text, model=MODEL, provider=PROVIDER, comments=0, delta_chars=DELTA_CHARS)


class Script:
    """One text, framed: its content chunk by chunk, and what ends the stream."""

    def __init__(self, text: str) -> None:
        self.text = text
        placeholder = "~~~~~"
        event, *ending = _reply(placeholder).events()
        opening, _, closing = event.partition(json.dumps(placeholder).encode())
        pieces = _reply(text).pieces(text)
        self.content = [
            _frame(opening + json.dumps(piece, ensure_ascii=False).encode() + closing)
            for piece in pieces
        ]
        self.ending = b"".join(map(_frame, ending)) + b"0\r\n\r\n"  # finish, usage, sentinel
        length = len(opening) + len(closing) + STAMP_CHARS + len('"@@"')
        self._stamped = b'%x\r\n%b"@%%0%dd@"%b\r\n' % (length, opening, STAMP_CHARS, closing)

    def stamped(self) -> bytes:
        """A chunk that says when it was made."""
        return self._stamped % time.monotonic_ns()

    @lru_cache(maxsize=2 * FIRST_CHUNKS // _BULK_WRITE_FRAMES)  # noqa: B019  lives for ever
    def joined(self, start: int, end: int) -> bytes:
        """Chunks in one piece."""
        return b"".join(self.content[start:end])

    @lru_cache(maxsize=8)  # noqa: B019  the same
    def whole(self, chunks: int) -> bytes:
        """The response to a request for no stream."""
        return _json(_reply(self.text[: chunks * DELTA_CHARS]).whole())


def prose() -> list[str]:
    """Texts that people wrote, each beginning elsewhere in Python's own manual."""
    manual = "\n".join(topics[name] for name in sorted(topics))
    lengths = [FIRST_CHUNKS] + [CHUNKS] * (TEXTS - 1)
    starts = [len(manual) * number // TEXTS for number in range(TEXTS)]
    return [
        manual[start : start + chunks * DELTA_CHARS]
        for start, chunks in zip(starts, lengths, strict=True)
    ]


class Replies:
    """What all connections share.

    Attributes:
        sent: chunks that were written.
        silent: connections that have nothing more to send until they are released.
        closed_ns: when the relay closed the connection of a stream, by its number.
        requests: how many there were, by number.
    """

    def __init__(self) -> None:
        self.scripts = [Script(text) for text in prose()]
        self.looping = Script(looping(chars=LOOP_CHARS).messages[0].content)
        self.sent = 0
        self.silent: set[Endpoint] = set()
        self.closed_ns: dict[int, int] = {}
        self.requests: Counter[int] = Counter()
        self._record = {"data": record(GENERATION_ID, streamed=True, cancelled=True)}

    def told(self, path: bytes) -> bytes:
        """The response to a request for a page. Streams that were closed are told once."""
        if path == b"/release":
            for endpoint in list(self.silent):
                endpoint.end()
        if path not in {b"/release", b"/counts"}:
            return _json(self._record)
        counts = {"sent": self.sent, "silent": len(self.silent), "closed_ns": self.closed_ns}
        self.closed_ns = {}
        return _json(counts)


class Endpoint(asyncio.Protocol):
    """One connection of a relay."""

    def __init__(self, replies: Replies) -> None:
        self._replies = replies
        self._loop = asyncio.get_running_loop()
        self._received = b""
        self._paused = False
        self._asked: Asked | None = None
        self._sent = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A relay connects."""
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """The relay leaves, with or without all it asked for."""
        if self._asked is not None:
            self._replies.closed_ns[self._asked.number] = time.monotonic_ns()
            self._replies.silent.discard(self)
            self._asked = None

    def data_received(self, data: bytes) -> None:
        """Wait for the whole request, then answer it."""
        self._received += data
        head, ended, body = self._received.partition(b"\r\n\r\n")
        if not ended:
            return
        if head.startswith(b"GET "):
            self._received = b""
            self._transport.write(self._replies.told(head.split()[1]))
            return
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        if len(body) < int(length):
            return
        self._received = b""
        self._answer(json.loads(body))

    def _answer(self, request: dict[str, object]) -> None:
        asked = Asked(**json.loads(request["messages"][-1]["content"]))  # type: ignore[index]
        replies = self._replies
        replies.requests[asked.number] += 1
        self._script = replies.scripts[asked.text]
        if asked.loops >= replies.requests[asked.number]:
            self._script = replies.looping
        if not request.get("stream"):
            self._transport.write(self._script.whole(asked.chunks))
            return
        self._asked, self._sent = asked, 0
        self._chunks = min(asked.chunks, len(self._script.content))
        self._transport.write(_HEAD)
        if asked.per_s:
            self._began_at = self._loop.time()
            self._send_one()
        else:
            self._send_many()

    def _send_one(self) -> None:
        asked = self._asked
        if asked is None:
            return
        if self._sent == self._chunks:
            self._all_sent()
            return
        script = self._script
        self._transport.write(script.stamped() if asked.stamped else script.content[self._sent])
        self._sent += 1
        self._replies.sent += 1
        self._loop.call_at(self._began_at + self._sent / asked.per_s, self._send_one)

    def _send_many(self) -> None:
        while not self._paused and self._asked is not None:
            until = min(self._sent + _BULK_WRITE_FRAMES, self._chunks)
            self._transport.write(self._script.joined(self._sent, until))
            self._replies.sent += until - self._sent
            self._sent = until
            if until == self._chunks:
                self._all_sent()
                return

    def _all_sent(self) -> None:
        if self._asked is not None and self._asked.ends:
            self.end()
        else:
            self._replies.silent.add(self)

    def end(self) -> None:
        """End the reply."""
        self._replies.silent.discard(self)
        self._asked = None
        self._transport.write(self._script.ending)

    def pause_writing(self) -> None:
        """The relay does not take what there is."""
        self._paused = True

    def resume_writing(self) -> None:
        """It does again. A stream with a pace goes on by its clock."""
        self._paused = False
        if self._asked is not None and not self._asked.per_s and self._sent < self._chunks:
            self._send_many()


async def serve(port: int) -> None:
    """Serve for ever."""
    replies = Replies()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Endpoint(replies), "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    uvloop.run(serve(parser.parse_args().port))
