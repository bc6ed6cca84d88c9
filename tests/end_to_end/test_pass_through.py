"""Every other path goes through untouched, both ways; and how a profile is chosen."""

import gzip
import io
import json
import os
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from loopguard.app import Loopguard
from loopguard.proxy import passthrough
from loopguard.settings import load
from tests.end_to_end.conftest import ENVIRONMENT, Guard, Guarded
from tests.end_to_end.raw_caller import CHAT, REQUEST, ask, calling, connected, metrics
from tests.fake_openrouter import FakeOpenRouter, Reply, Step, close, head, raw

GOOD = Reply("The good answer.")


@pytest.mark.parametrize("prefix", ["/v1", "/api/v1", "/profiles/default/v1"])
async def test_embeddings_and_models(guarded: Guard, prefix: str) -> None:
    """The openai client's other calls are answered by the upstream, under every prefix."""
    async with guarded([]) as ours, ours.client(prefix) as client:
        embedding = await client.embeddings.create(
            model="m/e", input="text", encoding_format="float"
        )
        assert embedding.data[0].embedding == [0.25, -0.5]
        models = await client.models.list()
        assert models.data[0].id == "openai/gpt-4o-mini"
        assert [request.path for request in ours.fake.requests] == ["/embeddings", "/models"]
        assert ours.fake.requests[0].key == "sk-caller"
        assert ours.records == []


async def test_error_is_the_upstreams(guarded: Guard) -> None:
    """An error of the upstream comes as the upstream said it, and is not asked for again."""
    async with guarded([]) as ours:
        caller = await ask(ours, path="/v1/nothing/here", method="GET")
        assert (caller.status, caller.error["message"]) == (404, "Not Found")
        assert len(ours.fake.requests) == 1
        async with ours.client() as client:
            with pytest.raises(openai.NotFoundError):
                await client.models.retrieve("m/x")


async def test_upload_streams(guarded: Guard) -> None:
    """An upload and its answer stream both ways, piece by piece, at the length announced."""
    async with guarded([]) as ours:
        async with calling(ours, b"first", {"Content-Length": "15"}, path="/v1/echo") as caller:
            await caller.until(b"first")
            (request,) = ours.fake.requests
            assert request.body == b"first"
            await caller.write(b" second")
            await caller.until(b" second")
            await caller.write(b" th")
            assert await caller.whole() == b"first second th"
        assert request.headers["content-length"] == "15"


async def test_upload_of_unknown_length(guarded: Guard) -> None:
    """An upload in chunks goes on in chunks."""
    async with guarded([]) as ours:
        async with connected(ours.loopguard.api_port) as caller:
            await caller.write(
                b"POST /v1/echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                b"5\r\nfirst\r\n"
            )
            await caller.until(b"first")
            await caller.write(b"6\r\nsecond\r\n0\r\n\r\n")
            assert await caller.whole() == b"firstsecond"
        assert ours.fake.requests[0].headers["transfer-encoding"] == "chunked"


async def test_large_bodies(guarded: Guard) -> None:
    """A body far over the limit of guarded requests goes through, and comes back, byte for byte."""
    body = os.urandom(20_000_000)
    async with (
        guarded([], server__max_body_bytes="1000") as ours,
        aiohttp.ClientSession() as session,
        session.post(f"{ours.origin}/v1/echo", data=io.BytesIO(body)) as response,
    ):
        assert await response.read() == body
        assert response.headers["Content-Type"] == "application/octet-stream"


async def test_compressed_answer(guarded: Guard) -> None:
    """A caller who takes a compressed answer gets the upstream's bytes as they are."""
    async with guarded([]) as ours:
        caller = await ask(ours, b"", {"Accept-Encoding": "gzip"}, path="/v1/models", method="GET")
        assert caller.headers["content-encoding"] == "gzip"
        assert b"openai/gpt-4o-mini" in gzip.decompress(caller.body)


async def test_plain_answer(guarded: Guard) -> None:
    """A caller who did not say that it takes a compressed answer gets a plain one."""
    async with guarded([]) as ours:
        caller = await ask(ours, b"", path="/v1/models", method="GET")
        assert "content-encoding" not in caller.headers
        assert b"openai/gpt-4o-mini" in caller.body


async def test_compressed_upload(guarded: Guard) -> None:
    """A compressed upload arrives as the caller compressed it."""
    body = gzip.compress(b"text " * 10_000)
    async with guarded([]) as ours:
        await ask(ours, body, {"Content-Encoding": "gzip"}, path="/v1/echo")
        (request,) = ours.fake.requests
        assert request.headers["content-encoding"] == "gzip"
        assert request.headers["content-length"] == str(len(body))
        assert request.body == body


@pytest.mark.parametrize("coding", ["gzip", "X-GZIP", "deflate", "identity"])
async def test_compressed_request_for_a_reply(guarded: Guard, coding: str) -> None:
    """A compressed request for a reply is unpacked, since its body is read."""
    body = json.dumps(REQUEST).encode()
    if coding != "identity":
        body = zlib.compress(body) if coding == "deflate" else gzip.compress(body)
    async with guarded([GOOD]) as ours:
        assert (await ask(ours, body, {"Content-Encoding": coding})).status == 200
        (request,) = ours.fake.requests
        assert "content-encoding" not in request.headers
        assert request.json["messages"] == REQUEST["messages"]


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_methods(guarded: Guard, method: str) -> None:
    """Any method goes through."""
    async with guarded([]) as ours:
        caller = await ask(ours, b"x", path="/v1/echo", method=method)
        assert (caller.status, caller.body) == (200, b"x")
        assert ours.fake.requests[0].method == method


def answer(fake: FakeOpenRouter, *steps: Step) -> None:
    """Have the fake answer `/echo` with these steps."""

    async def echo(*_: object) -> AsyncIterator[Step]:
        for step in steps:
            yield step

    fake._echo = echo


async def test_head(guarded: Guard) -> None:
    """The answer to HEAD is the upstream's head, with the length that a body would have."""
    async with guarded([]) as ours:
        answer(ours.fake, raw(b"HTTP/1.1 200 OK\r\nContent-Length: 123\r\nX-Y: z\r\n\r\n"))
        async with calling(ours, b"", path="/v1/echo", method="HEAD") as caller:
            assert await caller.head() == 200
            assert (caller.headers["content-length"], caller.headers["x-y"]) == ("123", "z")
            caller.status = 0
            await caller.send(b"x", path="/v1/echo", method="HEAD")
            assert await caller.head() == 200


@pytest.mark.parametrize(
    "target",
    [
        "/echo?a=1&a=2&b=%2F%20+&c",
        "/models/deepseek%2Fr1/endpoints",
        "/a%20b//c/",
        "/%E6%BC%A2;v=1,2:3@x",
        "/echo?x=a/../b&y=%23",
    ],
)
async def test_path_and_query_are_as_written(
    guarded: Guard, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Path and query go upstream as the caller wrote them, with no byte decoded or encoded."""
    seen = []
    async with guarded([]) as ours:
        session = ours.api._upstream._session
        request = session.request

        async def spy(method: str, url: object, **more: object) -> aiohttp.ClientResponse:
            response = await request(method, url, **more)
            seen.append(response.request_info.url.raw_path_qs)
            return response

        monkeypatch.setattr(session, "request", spy)
        await ask(ours, b"", path="/v1" + target, method="GET")
    assert seen == ["/api/v1" + target]


async def test_guarded_path_by_another_method(guarded: Guard) -> None:
    """A guarded path asked for by another method than POST is the upstream's to answer."""
    async with guarded([GOOD]) as ours:
        caller = await ask(ours, b"", path=CHAT, method="GET")
        assert (caller.status, caller.error["message"]) == (404, "Not Found")


async def test_client_asks_again_for_what_was_not_passed_on(guarded: Guard) -> None:
    """A connection that closes before its answer is the client's to retry, as without loopguard."""
    async with guarded([]) as ours, ours.client() as client:
        answer(ours.fake, close)
        with pytest.raises(openai.InternalServerError):
            await client.with_options(max_retries=1).post("/echo", cast_to=object, body={})
        assert len(ours.fake.requests) == 2


async def test_upstream_that_breaks_off(guarded: Guard) -> None:
    """An answer that breaks off breaks off for the caller too, and is not taken for the whole."""

    async with guarded([]) as ours:
        answer(ours.fake, raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nsome"), close)
        async with calling(ours, b"x", path="/v1/echo") as caller:
            assert await caller.head() == 200
            assert caller.headers["content-length"] == "100"
            with pytest.raises(EOFError):
                await caller.whole()
        series = await metrics(ours.admin)
        assert series["loopguard_open_upstreams"] == 0


async def test_caller_who_takes_nothing_is_given_up(
    guarded: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller who reads nothing of an answer that is passed on keeps the upstream for a while."""
    monkeypatch.setattr(passthrough, "_TAKING_S", 0.2)
    async with guarded([]) as ours:
        answer(ours.fake, head(), *[b"x" * 1_000_000] * 30)
        async with calling(ours, b"x", path="/v1/echo") as caller:
            caller._writer.transport.pause_reading()
            await ours.fake.until(lambda: bool(ours.fake.requests))
            await ours.fake.requests[0].left()
        assert (await metrics(ours.admin))["loopguard_open_upstreams"] == 0


PROFILES = """
[[routes]]
model = "deep/*"
profile = "routed"

[profiles.default]
[profiles.named]
[profiles.routed]
"""


@asynccontextmanager
async def profiled(tmp_path: Path) -> AsyncIterator[Guarded]:
    """loopguard with three profiles, one of them routed to."""
    path = tmp_path / "loopguard.toml"
    path.write_text(PROFILES)
    async with FakeOpenRouter([GOOD]) as fake:
        environ = ENVIRONMENT | {"LOOPGUARD_UPSTREAM__BASE_URL": fake.base_url}
        records: list[Any] = []
        async with Loopguard(load(path, environ), records.append) as loopguard:
            yield Guarded(fake, loopguard, records)


@pytest.mark.parametrize(
    ("path", "headers", "model", "profile"),
    [
        (CHAT, {}, "m/x", "default"),
        (CHAT, {}, "deep/x", "routed"),
        (CHAT, {"X-Loopguard-Profile": "named"}, "m/x", "named"),
        (CHAT, {"x-loopguard-profile": "named"}, "deep/x", "named"),
        ("/profiles/named/v1/chat/completions", {}, "deep/x", "named"),
        (
            "/profiles/default/v1/chat/completions",
            {"X-Loopguard-Profile": "named"},
            "deep/x",
            "default",
        ),
        (CHAT, {}, None, "default"),
    ],
)
async def test_profile(
    tmp_path: Path, path: str, headers: dict[str, str], model: str | None, profile: str
) -> None:
    """The path decides before the header, the header before the route, else it is the default."""
    async with profiled(tmp_path) as ours:
        await ask(ours, REQUEST | {"model": model}, headers, path=path)
        assert [record.profile for record in ours.records] == [profile]
        assert ours.fake.attempts[0].path == "/chat/completions"
        assert "x-loopguard-profile" not in ours.fake.attempts[0].headers
