"""What is wrong with a request or with an upstream is said clearly, and the next request works."""

import asyncio
import gzip
import json
from collections.abc import Sequence

import pytest

from loopguard.core.dialects import chat
from tests.end_to_end.conftest import Guard, Guarded
from tests.end_to_end.raw_caller import (
    CHAT,
    PATIENCE_S,
    REQUEST,
    STREAM,
    RawCaller,
    ask,
    asked,
    calling,
    connected,
    metrics,
    turning_until,
)
from tests.fake_openrouter import DONE, Reply, Step, close, event, head, loop, raw, reset

GOOD = Reply("The good answer.")
PLANTED = "pl4nted"


def assert_shape(caller: RawCaller, status: int, error_type: str) -> None:
    """The response is an error as the API writes it."""
    assert caller.status == status
    assert caller.headers["content-type"].partition(";")[0] == "application/json"
    error = caller.error
    assert error["code"] == status
    assert error["type"] == error["metadata"]["error_type"] == error_type
    assert error["message"]
    assert PLANTED not in json.dumps(error)


async def assert_works(guarded: Guarded) -> None:
    """The next request is served, and nothing is open."""
    guarded.fake.script = [GOOD]
    assert b"The good answer." in (await ask(guarded)).body
    async with asyncio.timeout(PATIENCE_S):
        # A connection that was read to the sentinel is given a moment for its last bytes.
        while (series := await metrics(guarded.admin))["loopguard_open_upstreams"]:
            pass
    assert series["loopguard_exchanges_in_flight"] == 0


@pytest.mark.parametrize(
    ("body", "headers", "path", "status", "error_type"),
    [
        (b"", {}, CHAT, 400, "invalid_request"),
        (b"{", {}, CHAT, 400, "invalid_request"),
        (b"[1]", {}, CHAT, 400, "invalid_request"),
        (b'"pl4nted"', {}, CHAT, 400, "invalid_request"),
        (b'{"pl4nted": nope}', {}, CHAT, 400, "invalid_request"),
        (b'{"a": "\xff\xfe"}', {}, CHAT, 400, "invalid_request"),
        (b'{"stream": "pl4nted"}', {}, CHAT, 400, "invalid_request"),
        (b'{"a":' + b"[" * 2000 + b"]" * 2000 + b"}", {}, CHAT, 400, "invalid_request"),
        (b'{"a":' + b"[" * 990 + b"]" * 990 + b"}", {}, CHAT, 400, "invalid_request"),
        (b"no gzip", {"Content-Encoding": "gzip"}, CHAT, 400, "invalid_request"),
        (b'{"a":"' + b"x" * 4096 + b'"}', {}, CHAT, 413, "payload_too_large"),
        (
            gzip.compress(b'{"a":"' + b"x" * 100_000 + b'"}'),
            {"Content-Encoding": "gzip"},
            CHAT,
            413,
            "payload_too_large",
        ),
        (REQUEST, {"X-Loopguard-Profile": "pl4nted"}, CHAT, 400, "invalid_request"),
        (REQUEST, {}, "/profiles/pl4nted/v1/chat/completions", 404, "not_found"),
        (REQUEST, {}, "/profiles//v1/chat/completions", 404, "not_found"),
        (STREAM, {"X-Loopguard-Relay": "pl4nted"}, CHAT, 400, "invalid_request"),
        (REQUEST, {}, "/pl4nted", 404, "not_found"),
        (REQUEST, {}, "/", 404, "not_found"),
        (REQUEST, {}, "/v1", 404, "not_found"),
        (REQUEST, {}, "/v2/chat/completions", 404, "not_found"),
    ],
)
async def test_bad_requests_cost_nothing(  # noqa: PLR0917 - what is sent, what is answered
    guarded: Guard,
    body: bytes | dict[str, object],
    headers: dict[str, str],
    path: str,
    status: int,
    error_type: str,
) -> None:
    """A request that cannot be served is refused in the API's shape before any attempt."""
    async with guarded([GOOD], server__max_body_bytes="4096") as ours:
        caller = await ask(ours, body, headers, path=path)
        assert_shape(caller, status, error_type)
        assert caller.headers["x-should-retry"] == "false"
        assert ours.fake.requests == []
        await assert_works(ours)


async def test_body_without_length_is_bounded_too(guarded: Guard) -> None:
    """A body over the limit is refused while it comes, though no length announced it."""
    async with guarded([GOOD], server__max_body_bytes="4096") as ours:
        async with calling(
            ours, b"", {"Transfer-Encoding": "chunked", "Content-Length": ""}
        ) as bad:
            await bad.whole()
        assert bad.status == 400
        async with connected(ours.loopguard.api_port) as caller:
            lines = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
            await caller.write(lines.encode() + b"1001\r\n" + b" " * 4097 + b"\r\n")
            await caller.whole()
        assert_shape(caller, 413, "payload_too_large")
        await assert_works(ours)


GUARDED_SPELLINGS = [
    "/v1/chat/completions",
    "/api/v1/chat/completions",
    "/profiles/default/v1/chat/completions",
    "/profiles/default/api/v1/chat/completions",
    "/v1/chat/completions/",
    "/v1//chat///completions",
    "/v1/chat\\completions",
    "/v1/chat%2Fcompletions",
    "/v1/chat%5ccompletions",
    "/v1/chat/complet%69ons",
    "/v1/chat/complet%2569ons",
    "/v1/Chat/COMPLETIONS",
    "/v1/chat/completions;a=b",
    "/v1/chat;a/completions",
    "/v1/chat/completions%3fa",
    "/v1/chat/completions%23a",
    "/v1/chat/completions%00",
    "/v1/chat/completions%20",
    "/v1/chat/completions%0a",
]

REFUSED_SPELLINGS = [
    "/v1/chat/completions#a",
    "/v1/chat/completions#?a",
    "/v1/./chat/completions",
    "/v1/x/../chat/completions",
    "/v1/x/%2e%2e/chat/completions",
    "/v1/x/.%2E/chat/completions",
    "/v1/x/%252e%252e/chat/completions",
    "/v1/x%2f..%2fchat/completions",
    "/v1/x\\..\\chat/completions",
    "/v1/..;/v1/chat/completions",
    "/v1/../v1/chat/completions",
    "/v1/%2e%2e/%2e%2e/admin",
    "/%76%31/chat/completions",
    "//v1/chat/completions",
    "/v1%2fchat/completions",
    "/profiles/default%2fv1/chat/completions",
    "http://elsewhere/v1/chat/completions",
]


@pytest.mark.parametrize("path", GUARDED_SPELLINGS)
async def test_every_spelling_is_guarded(guarded: Guard, path: str) -> None:
    """A guarded path, however it is spelt, is guarded and goes upstream in its plain spelling."""
    async with guarded([GOOD]) as ours:
        assert (await ask(ours, path=path + "?q=%41")).status == 200
        (attempt,) = ours.fake.requests
        assert (attempt.path, attempt.query) == ("/chat/completions", {"q": "A"})
        assert len(ours.records) == 1
        assert attempt.json["stream"] is True


@pytest.mark.parametrize("path", REFUSED_SPELLINGS)
async def test_dubious_spellings_are_refused(guarded: Guard, path: str) -> None:
    """A path that another server may read as another one is sent nowhere."""
    async with guarded([GOOD]) as ours:
        assert_shape(await ask(ours, path=path), 404, "not_found")
        assert ours.fake.requests == []
        await assert_works(ours)


@pytest.mark.parametrize(
    "line",
    [
        b"post /v1/chat/completions HTTP/1.1",
        b"POST /v1/chat\t/completions HTTP/1.1",
        b"POST /v1/chat/completions\xff HTTP/1.1",
        b"\x16\x03\x01\x02\x00",
    ],
)
async def test_what_is_no_http_is_refused(guarded: Guard, line: bytes) -> None:
    """A caller that speaks no HTTP is told so, and nothing of it goes anywhere."""
    async with guarded([GOOD]) as ours:
        async with connected(ours.loopguard.api_port) as caller:
            await caller.write(line + b"\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
            assert await caller.head() == 400
        assert ours.fake.requests == []
        await assert_works(ours)


HTML = b"<html><body>pl4nted</body></html>"
ROLE = next(event for event in GOOD.events() if b"role" in event)

LYING_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 9999\r\n\r\n"

# What the upstream does, how often it is asked, what the caller is told.
BAD_UPSTREAMS: dict[str, tuple[Sequence[Step], int, int]] = {
    "HTML": ([head(content_type="text/html"), HTML], 1, 502),
    "HTML with an error status": ([head(503, content_type="text/html"), HTML], 4, 503),
    "no content type": ([head(content_type=""), HTML], 1, 502),
    "JSON without error": ([head(content_type="application/json"), b'{"ok":"pl4nted"}'], 1, 502),
    "JSON that is none": ([head(content_type="application/json"), b"{pl4nted"], 1, 502),
    "deep JSON": ([head(content_type="application/json"), b"[" * 100_000], 1, 502),
    "garbage": ([raw(b"pl4nted\r\n\r\n"), close], 4, 502),
    "another protocol": ([raw(b"SSH-2.0-pl4nted\r\n"), close], 4, 502),
    "half a head": ([raw(b"HTTP/1.1 200 OK\r\nContent-Ty"), close], 4, 502),
    "an endless head": ([raw(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000), close], 4, 502),
    "nothing": ([close], 4, 502),
    "a reset": ([reset], 4, 502),
    "an empty stream": ([head()], 4, 502),
    "a stream that ends early": ([head(), ROLE], 4, 502),
    "a torn stream": ([head(), ROLE, reset], 4, 502),
    "half an event": ([head(), ROLE, b'data: {"pl4nted'], 4, 502),
    "broken framing": ([head(), raw(b"zz\r\npl4nted\r\n")], 4, 502),
    "an endless line": ([head(), b"data: " + b"x" * 5000], 1, 502),
    "no JSON": ([head(), b"data: pl4nted\n\n"], 4, 502),
    "a list": ([head(), b'data: ["pl4nted"]\n\n'], 4, 502),
    "deep JSON in the stream": ([head(), b"data: " + b"[" * 4000 + b"\n\n"], 4, 502),
    "half a UTF-8 sequence": ([head(), b'data: {"choices": "\xe2\x82"}\n\n'], 4, 502),
    "choices that are none": ([head(), event({"choices": "pl4nted"})], 4, 502),
    "usage that counts nothing": ([head(), event({"usage": {"cost": "pl4nted"}})], 4, 502),
    "usage without end": ([head(), b'data: {"usage":{"prompt_tokens":1e999}}\n\n'], 4, 502),
    "a length that lies": ([raw(LYING_HEAD), raw(ROLE), close], 4, 502),
}


@pytest.mark.parametrize("mode", ["held", "whole", "live"])
@pytest.mark.parametrize("name", BAD_UPSTREAMS)
async def test_bad_upstreams_are_told_by_status(guarded: Guard, name: str, mode: str) -> None:
    """An upstream that does not speak the dialect is an error of its own kind, and of no text."""
    steps, attempts, status = BAD_UPSTREAMS[name]
    body, headers = asked(mode)
    async with guarded([steps], server__max_line_bytes="4096") as ours:
        caller = await ask(ours, body, headers)
        # Once a delta has left, live, there is no other attempt.
        assert len(ours.fake.attempts) == (attempts if caller.status != 200 else 1)
        if mode == "live" and caller.status == 200:
            assert caller.body.endswith(b"\n\n")
            assert DONE not in caller.body
            assert caller.error["code"] == status
        elif status == 503:
            assert (caller.status, caller.body) == (503, HTML)
        else:
            assert_shape(caller, status, "upstream_unusable")
        if caller.status != 200:
            assert caller.headers["x-should-retry"] == "false"
        (record,) = ours.records
        assert PLANTED not in json.dumps(record.fields())
        await assert_works(ours)


@pytest.mark.parametrize(
    "base_url", ["http://127.0.0.1:9/api/v1", "http://no-such-host.invalid/api/v1"]
)
async def test_upstream_that_is_not_there(guarded: Guard, base_url: str) -> None:
    """An upstream that cannot be reached, or whose name is unknown, is a 502 after all attempts."""
    # A resolver that is out of reach says for long that it knows nothing.
    environment = {"upstream__base_url": base_url, "upstream__connect_timeout_s": "2"}
    async with guarded([], **environment) as ours:
        assert_shape(await ask(ours), 502, "upstream_unusable")
        assert_shape(await ask(ours, path="/v1/models", method="GET"), 502, "upstream_unusable")
        (record,) = ours.records
        assert [attempt.outcome for attempt in record.attempts] == ["broken"] * 4


async def test_error_under_200_is_told_by_its_status(guarded: Guard) -> None:
    """An error object under status 200 is passed on as it came, with the status that it names."""
    body = b'{"error":{"code":402,"message":"no credits"},"user_id":"u"}'
    async with guarded([[head(content_type="application/json"), body]]) as ours:
        caller = await ask(ours)
        assert (caller.status, caller.body) == (402, body)
        assert len(ours.fake.attempts) == 1


async def test_upload_that_breaks_off_costs_nothing(guarded: Guard) -> None:
    """A caller who leaves in the middle of its request has cost no attempt and no exchange."""
    async with guarded([GOOD]) as ours:
        async with calling(ours, b'{"model":', {"Content-Length": "100"}) as caller:
            await turning_until(lambda: ours.api._routes._requests == 1)
            caller.leave()
            await turning_until(lambda: ours.api._routes._requests == 0)
        assert ours.fake.requests == []
        assert ours.records == []


@pytest.mark.parametrize("mode", ["held", "whole", "live"])
async def test_fault_of_our_own_is_told(
    guarded: Guard, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where loopguard itself fails the caller is told with a 500, of which nothing leaks."""

    def parse(*_: object) -> None:
        raise RuntimeError(PLANTED)

    body, headers = asked(mode)
    async with guarded([GOOD]) as ours:
        with monkeypatch.context() as patch:
            patch.setattr(chat.Parser, "parse", parse)
            assert_shape(await ask(ours, body, headers), 500, "server")
        await assert_works(ours)


async def test_fault_of_our_own_after_the_head(
    guarded: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where loopguard fails after the head has left, the stream ends with an error event."""

    def stream(*_: object) -> None:
        raise RuntimeError(PLANTED)

    async def opened(_: object) -> None:
        await turning_until(
            lambda: any(exchange._caller.opened for exchange in ours.api._routes.exchanges)
        )

    monkeypatch.setattr(chat.Held, "stream", stream)
    async with guarded([[head(), opened, *GOOD.events()]], server__keepalive_s="0.01") as ours:
        caller = await ask(ours, STREAM)
        assert caller.status == 200
        assert (caller.error["code"], caller.error["type"]) == (500, "server")
        assert PLANTED.encode() not in caller.body


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","messages":"\\ud83d"}',
        b'{"model":"m","messages":[],"seed":123456789012345678901234567890}',
    ],
)
async def test_odd_requests_that_loop_are_remembered(guarded: Guard, body: bytes) -> None:
    """A request that only the lenient parser reads is known again when it has looped."""
    async with guarded([loop()]) as ours:
        for _ in range(2):
            caller = await ask(ours, body)
            assert_shape(caller, 502, "model_response_loop")
        assert [record.outcome for record in ours.records] == ["looped", "remembered"]
