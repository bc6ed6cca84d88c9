"""What a peer may take before it has asked for anything, and what it reads when it takes more."""

import asyncio
import contextlib
import json
import resource
from collections.abc import AsyncIterator

import pytest

from loopguard.proxy import listener
from tests.end_to_end.command import serving
from tests.end_to_end.conftest import Guard, Guarded
from tests.end_to_end.raw_caller import (
    CHAT,
    PATIENCE_S,
    REQUEST,
    STREAM,
    RawCaller,
    ask,
    calling,
    connected,
    metrics,
    turning_until,
)
from tests.fake_openrouter import FakeOpenRouter, Reply, head, stall

GOOD = Reply("The good answer.")
HEAD = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n"
SHORT = {"server__head_timeout_s": "0.15", "server__idle_timeout_s": "0.4"}


async def rest(caller: RawCaller) -> bytes:
    """Whatever else comes until the connection is closed."""
    with contextlib.suppress(ConnectionError):
        return await caller._reader.read(-1)
    return b""


async def told(caller: RawCaller, status: int, error_type: str) -> None:
    """The caller reads this error, in the form of the API, and the end of its connection."""
    await caller.whole()
    assert (caller.status, caller.error["type"]) == (status, error_type)
    assert caller.error["code"] == status
    assert caller.headers["content-type"] == "application/json"
    assert caller.headers["connection"] == "close"
    assert caller.headers["server"] == "loopguard"
    assert await rest(caller) == b""


@pytest.fixture
def port(request: pytest.FixtureRequest) -> str:
    """Of which listener."""
    return f"{request.param}_port"


@pytest.mark.parametrize("port", ["api", "admin"], indirect=True)
@pytest.mark.parametrize("sent", [b"P", b"\r\n", HEAD.encode(), b"GET /metrics HTTP/1.1\r\nX: "])
async def test_head_that_does_not_end(guarded: Guard, port: str, sent: bytes) -> None:
    """A head that has begun and does not end is answered with 408 when its time is over."""
    async with (
        guarded([GOOD], **SHORT) as ours,
        connected(getattr(ours.loopguard, port)) as caller,
    ):
        await caller.write(sent)
        await told(caller, 408, "timeout")


async def test_trickle_of_a_head(guarded: Guard) -> None:
    """A head that comes byte by byte has no more time than any other."""
    async with guarded([GOOD], **SHORT) as ours, connected(ours.loopguard.api_port) as caller:
        for byte in HEAD.encode():  # takes eleven times as long as a head may
            await caller.write(bytes([byte]))
            await asyncio.sleep(0.02)  # that bytes keep coming is the point
            if caller._reader._buffer:
                break
        else:
            pytest.fail("all of it was taken")
        await told(caller, 408, "timeout")
        assert (await metrics(ours.admin))["loopguard_refusals_total"] == 1


@pytest.mark.parametrize("port", ["api", "admin"], indirect=True)
async def test_connection_without_a_request(guarded: Guard, port: str) -> None:
    """A connection on which nothing is asked is closed after a while, without a word."""
    async with guarded([GOOD], **SHORT) as ours:
        async with connected(getattr(ours.loopguard, port)) as caller:
            assert await rest(caller) == b""
        async with connected(getattr(ours.loopguard, port)) as caller:
            path = "/v1/models" if port == "api_port" else "/healthz"
            await caller.send(method="GET", path=path, headers={"Host": "localhost"})
            await caller.whole()
            assert caller.status == 200
            assert await rest(caller) == b""


async def test_answer_may_take_longer(guarded: Guard) -> None:
    """The times of head and idle connection do not run while a request is served."""

    async def pause(_: object) -> None:
        await asyncio.sleep(0.6)  # longer than both

    async with (
        guarded([[head(), pause, *GOOD.events()]], **SHORT) as ours,
        connected(ours.loopguard.api_port) as caller,
    ):
        await caller.send(STREAM)
        await ours.fake.attempt(1)
        await caller.write(b"GET /v1/models HT")  # the next one begins meanwhile
        assert b"The good answer." in await caller.whole()
        assert caller.status == 200
        assert await rest(caller) == b""


BODIES = {
    "nothing of it": b"Content-Length: 100\r\n\r\n",
    "half of it": b'Content-Length: 100\r\n\r\n{"model":',
    "no chunk": b"Transfer-Encoding: chunked\r\n\r\n",
    "half a chunk": b'Transfer-Encoding: chunked\r\n\r\n20\r\n{"model":',
}


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
@pytest.mark.parametrize("sent", BODIES)
async def test_body_that_does_not_come(guarded: Guard, path: str, sent: str) -> None:
    """A body that does not come is answered with 408, and the upstream is not asked."""
    async with guarded([GOOD], server__body_timeout_s="0.1") as ours:
        async with connected(ours.loopguard.api_port) as caller:
            await caller.write(f"POST {path} HTTP/1.1\r\nHost: x\r\n".encode() + BODIES[sent])
            await caller.whole()
            assert (caller.status, caller.error["type"]) == (408, "timeout")
            assert caller.headers["connection"] == "close"
        assert ours.fake.requests == []
        series = await metrics(ours.admin)
        assert series["loopguard_refusals_total"] == 1
        assert series["loopguard_open_upstreams"] == 0
        assert (await ask(ours)).status == 200


async def test_trickle_of_a_body(guarded: Guard) -> None:
    """A body that comes in bits is given no more time than its bytes are worth."""
    async with guarded([GOOD], server__body_timeout_s="0.2") as ours:
        async with calling(ours, b"{", {"Content-Length": "1000"}) as caller:
            sent = 0
            while not caller._reader._buffer:
                await caller.write(b" ")
                sent += 1
                await asyncio.sleep(0.02)  # that bytes keep coming is the point
            assert sent < 50
            assert await caller.head() == 408
        assert ours.fake.requests == []


async def test_large_body_may_take_its_time() -> None:
    """What arrives at a fair rate is waited for, however long all of it takes."""
    body = asyncio.StreamReader()
    pieces = 8

    async def send() -> None:
        for _ in range(pieces):
            await asyncio.sleep(0.1)  # eight of them are more than the patience
            body.feed_data(b"x" * 2000)
        body.feed_eof()

    class Content:
        async def readany(self) -> bytes:
            return await body.read(1 << 16)

        def is_eof(self) -> bool:
            return body.at_eof()

        def read_nowait(self) -> bytes:
            return b""

    sending = asyncio.create_task(send())
    arrived = [piece async for piece in listener.arriving(Content(), 0.6)]
    await sending
    assert sum(map(len, arrived)) == 2000 * pieces


@contextlib.asynccontextmanager
async def filled(ours: Guarded, count: int) -> AsyncIterator[list[RawCaller]]:
    """So many connections, of which each has asked once and is still open."""
    async with contextlib.AsyncExitStack() as stack:
        callers = []
        for _ in range(count):
            caller = await stack.enter_async_context(connected(ours.loopguard.api_port))
            await caller.send(method="GET", path="/v1/models")
            await caller.whole()
            callers.append(caller)
        yield callers


async def test_too_many_connections(guarded: Guard) -> None:
    """A connection too many reads 503 with when to come again; the others are served on."""
    async with guarded([GOOD], server__max_connections="3") as ours:
        async with filled(ours, 3) as callers:
            for _ in range(5):
                async with connected(ours.loopguard.api_port) as turned_away:
                    await turned_away.send(REQUEST)
                    await told(turned_away, 503, "overloaded")
                    assert turned_away.headers["retry-after"] == "1"
                    assert "x-should-retry" not in turned_away.headers
            for caller in callers:
                again = RawCaller(caller._reader, caller._writer)
                await again.send(REQUEST)
                await again.whole()
                assert again.status == 200
            series = await metrics(ours.admin)
            assert series["loopguard_connections"] == 3
            assert series["loopguard_refusals_total"] == 5
            assert len(ours.fake.attempts) == 3
        async with asyncio.timeout(PATIENCE_S):
            while (await metrics(ours.admin))["loopguard_connections"]:
                pass
        assert (await ask(ours)).status == 200


async def test_crowd_that_is_turned_away_costs_nothing(guarded: Guard) -> None:
    """Of a crowd beyond the bound a few are told why, and the rest is closed at once."""
    async with guarded([GOOD], server__max_connections="1") as ours, filled(ours, 1):
        crowd = [
            await asyncio.open_connection("127.0.0.1", ours.loopguard.api_port) for _ in range(200)
        ]
        answers = []
        for reader, writer in crowd:
            with contextlib.suppress(ConnectionError):
                answers.append(await reader.read(-1))
            writer.close()
        assert 1 <= len([answer for answer in answers if b" 503 " in answer]) < 200
        series = await metrics(ours.admin)
        assert series["loopguard_refusals_total"] == 200
        assert series["loopguard_connections"] == 1


def test_room_for_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of open files is raised as far as the system allows, and says what fits."""
    limits = [256, 4096]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda _, wanted: limits.__setitem__(0, wanted[0]))
    assert listener.connections_that_fit(1000) == 1000
    assert limits[0] == 3024
    assert listener.connections_that_fit(10_000) == 1536
    assert limits[0] == 4096
    limits[:] = [600, resource.RLIM_INFINITY]
    assert listener.connections_that_fit(10_000) == 10_000
    limits[:] = [100, 100]
    assert listener.connections_that_fit(10_000) == 1


GARBAGE = {
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03pl4nted\r\n\r\n",
    "words": b"pl4nted pl4nted\r\n\r\n",
    "a header without a colon": b"GET /v1/models HTTP/1.1\r\npl4nted\r\n\r\n",
    "a bad header": b"GET /v1/models HTTP/1.1\r\nAuthorization : pl4nted\r\n\r\n",
    "a NUL": b"GET /v1/models HTTP/1.1\r\nAuthorization: pl4nted\0\r\n\r\n",
}
LONG = {
    "a long path": b"GET /v1/" + b"pl4nted" * 2000 + b" HTTP/1.1\r\n\r\n",
    "a long header": b"GET /v1/models HTTP/1.1\r\nX: " + b"pl4nted" * 2000 + b"\r\n\r\n",
}


async def test_what_is_no_http_is_told_and_not_logged() -> None:
    """What is no HTTP reads an error of the API's form, and leaves one figure and no line."""
    async with FakeOpenRouter([GOOD]) as fake, serving(fake.base_url) as command:
        before = len(command.lines)
        for sent, status, error_type in [
            *((sent, 400, "invalid_request") for sent in GARBAGE.values()),
            *((sent, 431, "head_too_large") for sent in LONG.values()),
        ]:
            for port in (command.port, int(command.admin.rpartition(":")[2])):
                async with connected(port) as caller:
                    await caller.write(sent)
                    await told(caller, status, error_type)
                    assert "pl4nted" not in json.dumps(caller.error)
        series = await metrics(command.admin)
        assert series["loopguard_refusals_total"] == len(GARBAGE) + len(LONG)
        assert series["loopguard_admin_refusals_total"] == len(GARBAGE) + len(LONG)
        assert series["loopguard_admin_connections"] == 1  # which this is asked by
        assert len(command.lines) == before
        assert fake.connections == []


async def test_server_names_no_version(guarded: Guard) -> None:
    """No response of either listener says by which versions it was made."""
    async with guarded([GOOD], [404]) as ours:
        answers = [
            await ask(ours),
            await ask(ours, STREAM),
            await ask(ours, b""),
            await ask(ours, path="/nowhere"),
            await ask(ours, path="/v1/models", method="GET"),
        ]
        for path in ("/healthz", "/metrics", "/nowhere"):
            async with connected(ours.loopguard.admin_port) as caller:
                await caller.send(path=path, method="GET")
                await caller.whole()
                answers.append(caller)
    assert {answer.headers["server"] for answer in answers} == {"loopguard"}


async def test_connection_of_a_departed_caller_is_given_back(guarded: Guard) -> None:
    """A connection is counted out however it ends: left, reset, in the head, in the middle."""
    async with guarded([[head(), stall]], server__max_connections="4") as ours:
        for sent in (b"", b"GET", HEAD.encode(), HEAD.encode() + b"\r\n{"):
            async with connected(ours.loopguard.api_port) as caller:
                await caller.write(sent)
                caller._writer.transport.abort()
        async with calling(ours, STREAM) as caller:
            await ours.fake.attempt(1)
            caller.leave()
        await turning_until(lambda: ours.records != [])
        async with asyncio.timeout(PATIENCE_S):
            while (await metrics(ours.admin))["loopguard_connections"]:
                pass
