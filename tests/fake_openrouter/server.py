"""A scripted OpenRouter on a loopback port: raw bytes out, and a witness of what came in.

Each request for a reply takes the next answer of the script; the last one repeats. Beside them the
fake serves `/generation`, `/models`, `/embeddings` and `/echo` (any method; the body comes back as
it arrives). It reads a connection all the time, so it sees its caller leave in every phase.
"""

import asyncio
import contextlib
import gzip
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import chain, count
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qsl, urlsplit

from tests.fake_openrouter import completions, messages, responses
from tests.fake_openrouter.chat import Reply, compact
from tests.fake_openrouter.generations import record
from tests.fake_openrouter.line import Connection, Line
from tests.fake_openrouter.steps import Refusal, Step, head

PREFIX = "/api/v1"


class Wire(NamedTuple):
    """How a reply is sent on one path: as a stream, and whole."""

    events: Callable[[Reply], Iterable[Step]]
    whole: Callable[[Reply], dict[str, Any]]


WIRES = {
    "/chat/completions": Wire(Reply.events, Reply.whole),
    "/responses": Wire(responses.events, responses.whole),
    "/messages": Wire(messages.events, messages.whole),
    "/completions": Wire(completions.events, completions.whole),
}
MODEL = {
    "id": "openai/gpt-4o-mini",
    "name": "OpenAI: GPT-4o-mini",
    "context_length": 128_000,
    "pricing": {"prompt": "0.00000015", "completion": "0.0000006"},
    "top_provider": {"context_length": 128_000, "max_completion_tokens": 16_384},
}
MAX_READ_BYTES = 1 << 16
SEND_BUFFER_BYTES = 1 << 14
"""Small, so that what was written is not far from what was read."""

Answer = Reply | Refusal | Sequence[Step]


@dataclass
class Request:
    """A request as it arrived, and how far its answer got.

    Attributes:
        path: without the prefix and the query.
        headers: by lower-case name.
        arrived_at: monotonic seconds.
        answered: whether the fake came to the end of its answer.
    """

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    line: Line
    body: bytes = b""
    arrived_at: float = field(default_factory=time.monotonic)
    answered: bool = False

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def key(self) -> str | None:
        """The bearer token."""
        scheme, _, token = self.headers.get("authorization", "").partition(" ")
        return token if scheme == "Bearer" else None

    @property
    def generation_id(self) -> str:
        """The id that its reply carries."""
        return self.line.generation_id

    @property
    def written_bytes(self) -> int:
        """Bytes of the response that the socket has taken."""
        return self.line.written_bytes

    @property
    def connection(self) -> Connection:
        """The one that it arrived on."""
        return self.line.connection

    async def left(self) -> float:
        """When the other side left (monotonic seconds), waited for."""
        await self.connection.left.wait()
        assert self.connection.left_at is not None
        return self.connection.left_at


class FakeOpenRouter:
    """The fake, as an asynchronous context manager; `in_thread` serves tests that block.

    Args:
        script: an answer for each request for a reply, the last one repeated. A request with a
            header `X-Script` takes its answers from the script of `scripts` that it names.
        lookups: answers (statuses or refusals) to the first look-ups of each generation id,
            before its record.

    Attributes:
        requests: everything that arrived, in order.
        connections: every connection, in order.
        generations: the records that `/generation` answers with, by id; a test may change them.
        models: what `/models` lists; a test may change it.
        scripts: further scripts by name, for exchanges that run at once; a test fills it.
        open_streams: answers that are being sent.
    """

    def __init__(self, script: Iterable[Answer] = (), *, lookups: Sequence[int | Refusal] = ()):
        self.script = list(script)
        self.requests: list[Request] = []
        self.connections: list[Connection] = []
        self.generations: dict[str, dict[str, Any]] = {}
        self.models = [dict(MODEL)]
        self.scripts: dict[str, list[Answer]] = {}
        self.open_streams = 0
        self.port = 0
        self._lookups = list(lookups)
        self._looked_up: Counter[str] = Counter()
        self._keys: dict[str, str | None] = {}
        self._numbers = count()
        self._happened = asyncio.Event()
        self._serving: set[asyncio.Task[None]] = set()
        self._errors: list[Exception] = []

    @property
    def base_url(self) -> str:
        """Where an SDK is pointed."""
        return f"http://127.0.0.1:{self.port}{PREFIX}"

    @property
    def attempts(self) -> list[Request]:
        """The requests for a reply."""
        return [request for request in self.requests if request.path in WIRES]

    @property
    def lookups(self) -> list[Request]:
        """The requests for a generation's record."""
        return [request for request in self.requests if request.path == "/generation"]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until it is true; asked again whenever a request arrives or its answer ends."""
        while not condition():
            await self._happened.wait()

    async def attempt(self, number: int) -> Request:
        """The attempt of that number, counted from 1, waited for."""
        await self.until(lambda: len(self.attempts) >= number)
        return self.attempts[number - 1]

    async def __aenter__(self) -> Self:
        listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self.port = listener.getsockname()[1]
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._protocol, sock=listener)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        if self._errors and error is None:
            raise ExceptionGroup("the fake could not play its script", self._errors)

    def _protocol(self) -> asyncio.StreamReaderProtocol:
        reader = _WitnessedReader()
        return asyncio.StreamReaderProtocol(reader, lambda _, writer: self._accept(reader, writer))

    def _accept(self, reader: "_WitnessedReader", writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(high=0)  # drain: the socket has taken it all
        connection = reader.connection = Connection(writer)
        self.connections.append(connection)
        task = asyncio.ensure_future(self._serve(reader, connection))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, connection: Connection) -> None:
        try:
            while connection.open:
                await self._exchange(reader, connection)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the other side left
        except Exception as error:  # noqa: BLE001 - raised when the test leaves the fake
            self._errors.append(error)
        finally:
            connection.close()

    async def _exchange(self, reader: asyncio.StreamReader, connection: Connection) -> None:
        generation_id = f"gen-1783514921-{next(self._numbers):020d}"
        request = await _read_head(reader, Line(connection, generation_id))
        body = _read_body(reader, request.headers)
        if request.path == "/echo":
            steps = self._echo(request, body)
        else:
            request.body = b"".join([piece async for piece in body])
            steps = _each(self._answer(request))
        self.requests.append(request)
        self.open_streams += 1
        self._happen()
        try:
            await _until_left(_play(steps, request.line), connection)
            request.answered = connection.open
        finally:
            self.open_streams -= 1
            if request.generation_id in self._keys:
                self.generations[request.generation_id] = record(
                    request.generation_id,
                    streamed=request.json.get("stream", False),
                    cancelled=connection.left_at is not None,
                )
            self._happen()

    def _happen(self) -> None:
        self._happened.set()
        self._happened = asyncio.Event()

    def _answer(self, request: Request) -> Iterable[Step]:
        if request.path in WIRES and request.method == "POST":
            return self._next_answer(request)
        match request.method, request.path:
            case "GET", "/generation":
                return self._lookup(request)
            case "GET", "/models":
                return _json(
                    {"data": self.models},
                    gzipped="gzip" in request.headers.get("accept-encoding", ""),
                )
            case "POST", "/embeddings":
                vector = {"object": "embedding", "embedding": [0.25, -0.5], "index": 0}
                return _json({"object": "list", "data": [vector], "model": request.json["model"]})
            case _:
                return Refusal(404, message="Not Found").steps()

    def _next_answer(self, request: Request) -> Iterable[Step]:
        script = self.scripts.get(request.headers.get("x-script", ""), self.script)
        answer = script.pop(0) if len(script) > 1 else script[0]
        if isinstance(answer, Refusal):
            return answer.steps()
        self._keys[request.generation_id] = request.key
        if not isinstance(answer, Reply):
            return answer
        wire = WIRES[request.path]
        if request.json.get("stream"):
            return chain([head()], wire.events(answer))
        return _json(wire.whole(answer))

    def _lookup(self, request: Request) -> Iterable[Step]:
        generation_id = request.query["id"]
        if request.key is None:
            return Refusal(401).steps()
        self._looked_up[generation_id] += 1
        if self._looked_up[generation_id] <= len(self._lookups):
            answer = self._lookups[self._looked_up[generation_id] - 1]
        elif generation_id in self.generations and request.key == self._keys[generation_id]:
            return _json({"data": self.generations[generation_id]})
        else:
            answer = 404
        if answer == HTTPStatus.NOT_FOUND:
            answer = Refusal(404, message=f"Generation {generation_id} not found")
        return (Refusal(answer) if isinstance(answer, int) else answer).steps()

    async def _echo(self, request: Request, body: AsyncIterator[bytes]) -> AsyncIterator[Step]:
        yield head(content_type=request.headers.get("content-type", "application/octet-stream"))
        async for piece in body:
            request.body += piece
            yield piece


@contextlib.contextmanager
def in_thread(fake: FakeOpenRouter) -> Iterator[FakeOpenRouter]:
    """The fake served by a thread of its own, for tests that block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def leave() -> None:
        await fake.__aexit__(None, None, None)

    try:
        asyncio.run_coroutine_threadsafe(fake.__aenter__(), loop).result()
        yield fake
        asyncio.run_coroutine_threadsafe(leave(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextlib.contextmanager
def unreachable() -> Iterator[str]:
    """The base URL of a host where every connection waits to be made, for ever."""
    with socket.socket() as listener, socket.socket() as only_guest:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        only_guest.connect(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}{PREFIX}"


class _WitnessedReader(asyncio.StreamReader):
    """A reader that tells its connection the moment the other side ends it."""

    connection: Connection

    def feed_eof(self) -> None:
        self.connection.ended()
        super().feed_eof()

    def set_exception(self, exc: Exception) -> None:
        self.connection.ended()
        super().set_exception(exc)


async def _read_head(reader: asyncio.StreamReader, line: Line) -> Request:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    method, target, _ = first.split(" ")
    url = urlsplit(target)
    headers: dict[str, str] = {}
    for name, _, value in (text.partition(": ") for text in lines if text):
        headers[name.lower()] = value
    path = url.path.removeprefix(PREFIX)
    return Request(method, path, dict(parse_qsl(url.query)), headers, line)


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> AsyncIterator[bytes]:
    if headers.get("transfer-encoding") == "chunked":
        while size := int(await reader.readuntil(b"\r\n"), 16):
            yield await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readexactly(2)
        return
    left = int(headers.get("content-length", 0))
    while left:
        piece = await reader.read(min(left, MAX_READ_BYTES))
        if not piece:
            raise ConnectionResetError
        left -= len(piece)
        yield piece


async def _each(steps: Iterable[Step]) -> AsyncIterator[Step]:
    for step in steps:
        yield step


async def _play(steps: AsyncIterator[Step], line: Line) -> None:
    async for step in steps:
        await (line.body(step) if isinstance(step, bytes) else step(line))
    await line.end()


async def _until_left(playing: Any, connection: Connection) -> None:
    """Play, but no longer than the other side is there."""
    play = asyncio.ensure_future(playing)
    leave = asyncio.ensure_future(connection.left.wait())
    try:
        await asyncio.wait({play, leave}, return_when=asyncio.FIRST_COMPLETED)
        if play.done():
            play.result()
    finally:
        play.cancel()
        leave.cancel()


def _json(payload: dict[str, Any], *, gzipped: bool = False) -> Sequence[Step]:
    body = compact(payload).encode()
    if gzipped:
        body = gzip.compress(body)
    encoding = {"Content-Encoding": "gzip"} if gzipped else {}
    return [head(content_type="application/json", headers=encoding), body]
