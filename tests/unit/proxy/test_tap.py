"""Bodies taken where they arrive, over real connections of aiohttp's client."""

import asyncio
import gzip
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from loopguard.proxy.tap import Plain, Tap, tap

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"

Script = Callable[[asyncio.StreamWriter, "Caller"], Awaitable[None]]


class Caller:
    """Who reads a body, and tells the server how far it is."""

    def __init__(self) -> None:
        self.came: list[bytes] = []
        self.wants_more = True
        self._turn = asyncio.Event()

    def take(self, data: bytes) -> bool:
        self.came.append(data)
        self._turn.set()
        return self.wants_more

    async def has_taken(self, data: bytes) -> None:
        """Return once the last bytes that came are these."""
        while not self.came or self.came[-1] != data:
            self._turn.clear()
            await self._turn.wait()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A certificate of 127.0.0.1 with its key, signed by itself."""
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *subject]
    subprocess.run([*made, "-keyout", path, "-out", path], check=True, capture_output=True)
    return path


@asynccontextmanager
async def answered(
    script: Script, certificate: Path | None = None
) -> AsyncIterator[tuple[Caller, Callable[[], Awaitable[aiohttp.ClientResponse]]]]:
    """A server that answers each request by a script, and how to ask it."""
    caller = Caller()
    serving, verifying = None, True
    if certificate is not None:
        serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        serving.load_cert_chain(certificate)
        verifying = ssl.create_default_context(cafile=certificate)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                await script(writer, caller)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=serving)
    port = server.sockets[0].getsockname()[1]
    scheme = "http" if certificate is None else "https"
    async with server, aiohttp.ClientSession(trust_env=False) as session:
        yield caller, lambda: session.get(f"{scheme}://127.0.0.1:{port}/", ssl=verifying)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
async def test_each_read_is_handed_on_at_once(certificate: Path, *, tls: bool) -> None:
    """A tap holds on the installed aiohttp: each read is handed on as it comes, to the end."""

    async def script(writer: asyncio.StreamWriter, caller: Caller) -> None:
        writer.write(CHUNKED)
        for piece in (b"one", b"two", b"three"):
            writer.write(chunk(piece))
            await caller.has_taken(piece)
        writer.write(chunk(b"fo") + chunk(b"ur"))
        await caller.has_taken(b"four")
        writer.write(END)

    async with answered(script, certificate if tls else None) as (caller, ask):
        body = tap(await ask())
        assert isinstance(body, Tap)
        assert await body.pour(caller.take) is False
        assert caller.came == [b"one", b"two", b"three", b"four"]


async def test_a_whole_chunk_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of reads that are one HTTP chunk each, aiohttp's parser is shown the first and the last."""
    parsed = []

    async def script(writer: asyncio.StreamWriter, caller: Caller) -> None:
        writer.write(CHUNKED)
        for length in (1, 15, 16, 255, 256, 4095, 4096):
            writer.write(chunk(b"a" * length))
            await caller.has_taken(b"a" * length)
        writer.write(END)

    async with answered(script) as (caller, ask):
        body = tap(await ask())
        assert isinstance(body, Tap)
        parse = body._protocol.data_received
        monkeypatch.setattr(
            body._protocol, "data_received", lambda data: (parsed.append(data), parse(data))
        )
        assert await body.pour(caller.take) is False
        # The first of all may have come with the head; and aiohttp asks itself for more once.
        parsed = [data for data in parsed if data]
        assert parsed in ([chunk(b"a"), END], [chunk(b"a" * 15), END])


@pytest.mark.parametrize("length", [b"Content-Length: 6\r\n", b"Connection: close\r\n"])
async def test_a_body_without_chunks_is_handed_on(length: bytes) -> None:
    """A body that ends by its length, or with the connection, is handed on to its end."""

    async def script(writer: asyncio.StreamWriter, caller: Caller) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n" + length + b"\r\none")
        await caller.has_taken(b"one")
        writer.write(b"two")
        await caller.has_taken(b"two")
        if b"close" in length:
            writer.close()

    async with answered(script) as (caller, ask):
        body = tap(await ask())
        assert isinstance(body, Tap)
        assert await body.pour(caller.take) is False
        assert caller.came == [b"one", b"two"]


async def test_a_connection_is_used_again() -> None:
    """A connection whose body has come to its end serves the next request, which is tapped too."""
    ports = set()

    async def script(writer: asyncio.StreamWriter, caller: Caller) -> None:
        ports.add(writer.get_extra_info("peername"))
        writer.write(CHUNKED + chunk(b"one"))
        await caller.has_taken(b"one")
        writer.write(END)

    async with answered(script) as (caller, ask):
        for _ in range(3):
            body = tap(await ask())
            assert isinstance(body, Tap)
            assert await body.pour(caller.take) is False
            caller.came.clear()
    assert len(ports) == 1


async def test_an_end_after_the_last_pour_gives_the_connection_back() -> None:
    """A body that nobody pours any more, and that ends, leaves its connection for the next."""
    ports = set()
    ended = asyncio.Event()

    async def script(writer: asyncio.StreamWriter, _: Caller) -> None:
        ports.add(writer.get_extra_info("peername"))
        writer.write(CHUNKED + chunk(b"sentinel"))
        await ended.wait()
        writer.write(END)

    async with answered(script) as (caller, ask):
        caller.wants_more = False
        response = await ask()
        assert await tap(response).pour(caller.take) is True
        ended.set()
        await response.content.wait_eof()
        await tap(await ask()).pour(caller.take)
    assert len(ports) == 1


async def test_a_slow_taker_slows_the_upstream() -> None:
    """What comes while nobody asks is kept, the upstream is held up, and not a byte is lost."""
    piece = bytes(65_536)
    sent = 0

    async def script(writer: asyncio.StreamWriter, _: Caller) -> None:
        nonlocal sent
        writer.write(CHUNKED)
        for _ in range(400):
            writer.write(chunk(piece))
            await writer.drain()
            sent += len(piece)
        writer.write(END)

    async with answered(script) as (caller, ask):
        body = tap(await ask())
        caller.wants_more = False
        assert await body.pour(caller.take) is True
        before = -1
        while sent != before:  # what the sockets between us hold
            before = sent
            for _ in range(100):
                await asyncio.sleep(0)
        assert sent < 400 * len(piece)
        caller.wants_more = True
        assert await body.pour(caller.take) is False
    assert b"".join(caller.came) == 400 * piece


@pytest.mark.parametrize("broken", [b"", b"no HTTP chunk\r\n"], ids=["closed", "no chunk"])
async def test_a_body_that_breaks_off_is_an_error(broken: bytes) -> None:
    """A connection that is closed within a body, or sends no chunk, raises what aiohttp raises."""

    async def script(writer: asyncio.StreamWriter, caller: Caller) -> None:
        writer.write(CHUNKED + chunk(b"one"))
        await caller.has_taken(b"one")
        writer.write(broken)
        writer.close()

    async with answered(script) as (caller, ask):
        body = tap(await ask())
        with pytest.raises(aiohttp.ClientError):
            await body.pour(caller.take)
        assert caller.came == [b"one"]


async def test_a_fault_of_the_taker_is_raised_to_it() -> None:
    """What the function raises that the bytes are given to is raised where it was given."""

    async def script(writer: asyncio.StreamWriter, _: Caller) -> None:
        writer.write(CHUNKED + chunk(b"one"))

    async with answered(script) as (_, ask):
        with pytest.raises(ZeroDivisionError):
            await tap(await ask()).pour(lambda data: bool(1 // (len(data) - 3)))


@pytest.mark.parametrize("body", [b"one", b""])
async def test_a_body_that_came_with_its_head_is_read(body: bytes) -> None:
    """A body that is over before anyone asks for it is read by aiohttp's own reading."""

    async def script(writer: asyncio.StreamWriter, _: Caller) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    async with answered(script) as (caller, ask):
        response = await ask()
        await response.content.wait_eof()
        tapped = tap(response)
        assert isinstance(tapped, Plain)
        assert await tapped.pour(caller.take) is False
        assert b"".join(caller.came) == body


async def test_a_compressed_body_is_read() -> None:
    """A compressed body is read by aiohttp's own reading, which bounds what it unpacks to."""

    async def script(writer: asyncio.StreamWriter, caller: Caller) -> None:
        writer.write(CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n"))
        writer.write(chunk(gzip.compress(b"one")))
        await caller.has_taken(b"one")
        writer.write(END)

    async with answered(script) as (caller, ask):
        body = tap(await ask())
        assert isinstance(body, Plain)
        caller.wants_more = False
        assert await body.pour(caller.take) is True
        assert await body.pour(caller.take) is False
