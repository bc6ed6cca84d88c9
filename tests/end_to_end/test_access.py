"""Who may ask, with which key, and what is written of it: nothing."""

import hmac
import json
from typing import Any

import pytest

from tests.end_to_end.command import serving
from tests.end_to_end.conftest import Guard
from tests.end_to_end.raw_caller import (
    CHAT,
    REQUEST,
    STREAM,
    ask,
    asked,
    connected,
    metrics,
)
from tests.fake_openrouter import (
    FakeOpenRouter,
    Message,
    Refusal,
    Reply,
    ToolCall,
    event,
    fault,
    head,
    loop,
    reset,
    thought,
)

GOOD = Reply("The good answer.")
KEYS = {"upstream__api_key": "sk-operator", "server__client_tokens": "t0ken-a,t0ken-b"}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_callers_own_key_is_passed_on(guarded: Guard) -> None:
    """Without a key of the operator's the caller's own goes upstream, as the caller wrote it."""
    async with guarded([GOOD]) as ours:
        await ask(ours, headers={"Authorization": "Bearer  sk-caller"})
        await ask(ours, headers={"X-Api-Key": "sk-caller"})
        first, second = ours.fake.requests
        assert first.headers["authorization"] == "Bearer  sk-caller"
        assert second.headers["x-api-key"] == "sk-caller"
        assert "authorization" not in second.headers


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
@pytest.mark.parametrize(
    "headers", [bearer("t0ken-a"), bearer("t0ken-b"), {"X-Api-Key": "t0ken-b"}]
)
async def test_token_buys_the_operators_key(
    guarded: Guard, headers: dict[str, str], path: str
) -> None:
    """A caller with a token is served with the operator's key, and the token stays here."""
    async with guarded([GOOD], **KEYS) as ours:
        assert (await ask(ours, headers=headers, path=path)).status == 200
        (request,) = ours.fake.requests
        assert request.key == "sk-operator"
        assert "t0ken" not in str(request.headers)


async def test_refused_requests_are_counted(guarded: Guard) -> None:
    """Requests that become no exchange are counted, and only those."""
    async with guarded([GOOD], **KEYS) as ours:
        await ask(ours, headers=bearer("t0ken-c"))
        await ask(ours, headers=bearer("t0ken-a"), path="/nowhere")
        await ask(ours, headers=bearer("t0ken-a"))
        counted = await metrics(ours.admin)
    assert counted["loopguard_refusals_total"] == 2
    assert counted["loopguard_exchanges_total"] == 1


@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/nowhere"])
@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer("t0ken-c"),
        bearer("t0ken-"),
        bearer("t0ken-a,t0ken-b"),
        bearer("sk-operator"),
        {"Authorization": "Basic t0ken-a"},
        {"Authorization": "t0ken-a"},
        {"Authorization": "Bearer"},
        {"X-Api-Key": ""},
    ],
)
async def test_anyone_else_is_refused(guarded: Guard, headers: dict[str, str], path: str) -> None:
    """Without one of the tokens nothing is served, whatever the path, and nothing goes upstream."""
    async with guarded([GOOD], **KEYS) as ours:
        caller = await ask(ours, headers=headers, path=path)
        assert (caller.status, caller.error["type"]) == (401, "authentication")
        assert "t0ken" not in caller.body.decode()
        assert ours.fake.requests == []
        assert (await ask(ours, headers=bearer("t0ken-a"))).status == 200


@pytest.mark.parametrize("token", ["t0ken-a", "t0ken-b", "t0ken-c", "", "t0ken-\u00e9"])
async def test_time_tells_nothing_of_a_token(
    guarded: Guard, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    """Whatever is presented is compared with every token, each by a comparison of constant time."""
    compared: list[bytes] = []
    compare = hmac.compare_digest

    def noted(presented: bytes, known: bytes) -> bool:
        compared.append(known)
        return compare(presented, known)

    async with guarded([GOOD], **KEYS) as ours:
        monkeypatch.setattr(hmac, "compare_digest", noted)
        await ask(ours, headers=bearer(token))
        assert compared == [b"t0ken-a", b"t0ken-b"]


async def test_token_of_bytes_that_are_no_text_is_refused(guarded: Guard) -> None:
    """A token that is no text is a wrong token, not a fault of ours."""
    async with guarded([GOOD], **KEYS) as ours:
        async with connected(ours.loopguard.api_port) as caller:
            await caller.write(
                f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ".encode()
                + b"t0ken-\xff\r\nContent-Length: 2\r\n\r\n{}"
            )
            await caller.whole()
        assert caller.status == 401


async def test_headers_both_ways(guarded: Guard) -> None:
    """The caller's headers reach the upstream and the upstream's the caller, but for the hops'."""
    async with guarded([GOOD]) as ours:
        caller = await ask(
            ours,
            STREAM,
            bearer("sk")
            | {
                "HTTP-Referer": "https://app.example",
                "X-Title": "app",
                "User-Agent": "agent/1",
                "Accept-Encoding": "gzip",
                "Connection": "keep-alive, X-Hop",
                "X-Hop": "1",
                "X-Loopguard-Run": "r1",
                "X-Loopguard-Relay": "hold",
                "X-Loopguard-Profile": "default",
            },
        )
        (request,) = ours.fake.requests
        assert request.headers == {
            "host": f"127.0.0.1:{ours.fake.port}",
            "authorization": "Bearer sk",
            "http-referer": "https://app.example",
            "x-title": "app",
            "user-agent": "agent/1",
            "accept-encoding": "identity",
            "content-length": str(len(request.body)),
        }
        assert caller.headers["x-generation-id"] == request.generation_id
        assert caller.headers["cf-ray"]
        assert caller.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert caller.headers["cache-control"] == "no-cache, no-transform"
        assert caller.headers["x-accel-buffering"] == "no"
        assert caller.headers["x-loopguard-attempts"] == "1"
        assert "x-loopguard-loop-aborts" not in caller.headers
        assert "set-cookie" not in caller.headers
        assert "cloudflare" not in caller.headers.get("server", "")


PLANTED = "pl4nted"
SCRIPT: list[Any] = [
    *[loop(f"{PLANTED} pl4nted-word; ")] * 2,
    Reply(
        Message(
            f"{PLANTED} answer",
            reasoning=(thought(PLANTED),),
            tool_calls=(ToolCall("call", f'{{"a":"{PLANTED}"}}', "id"),),
        )
    ),
    Refusal(400, message=PLANTED),
    Refusal(429, message=PLANTED),
    Refusal(429, message=PLANTED),
    [head(), event({"choices": PLANTED})],
    [head(), event({"usage": {"cost": PLANTED}})],
    [head(), b"data: " + PLANTED.encode() + b"\n\n"],
    [head(), fault(400, PLANTED)],
    [head(content_type="text/html"), PLANTED.encode()],
    [head(), b": " + PLANTED.encode() + b"\n\n", reset],
    loop(f"{PLANTED} again; "),
]


async def test_nothing_of_it_is_written() -> None:
    """No key, header, prompt or reply text is in any line of the log at debug level, nor a metric.

    The command is taken through every ending, by callers whose requests and keys, and by an
    upstream whose every word, are planted.
    """
    async with (
        FakeOpenRouter(SCRIPT) as fake,
        serving(
            fake.base_url,
            log__level="debug",
            upstream__api_key=f"sk-{PLANTED}",
            server__client_tokens=f"token-{PLANTED}",
            retry__max_attempts="3",
            retry__max_wait_s="0.001",
        ) as command,
    ):
        statuses = []
        for number in range(8):
            for mode in ("whole", "held", "live"):
                body, headers = asked(mode)
                # The last ones, which loop every time, are asked twice.
                said = f"{PLANTED} {mode} {min(number, 6)}"
                messages = [{"role": "user", "content": said}]
                async with connected(command.port) as caller:
                    await caller.send(
                        {**body, "messages": messages},
                        headers=headers
                        | bearer(f"token-{PLANTED}")
                        | {"X-Title": PLANTED, "Cookie": PLANTED},
                        path=f"{CHAT}?q={PLANTED}",
                    )
                    await caller.whole()
                statuses.append(caller.status)
        for path, headers, body in [
            (f"/v1/{PLANTED}", bearer(f"token-{PLANTED}"), b""),
            (f"/{PLANTED}", bearer(f"token-{PLANTED}"), b""),
            (CHAT, bearer(f"{PLANTED}-wrong"), b""),
            (CHAT, bearer(f"token-{PLANTED}"), PLANTED.encode()),
            (
                CHAT,
                bearer(f"token-{PLANTED}") | {"Content-Encoding": "gzip"},
                PLANTED.encode(),
            ),
            (CHAT, bearer(f"token-{PLANTED}") | {"X-Loopguard-Profile": PLANTED}, b"{}"),
        ]:
            async with connected(command.port) as caller:
                await caller.send(body, headers=headers, path=path)
                await caller.whole()
            statuses.append(caller.status)
        async with connected(command.port) as caller:
            await caller.write(f"{PLANTED}\r\n\r\n".encode())
            await caller.head()
        series = await metrics(command.admin)
        command.terminate()
        assert await command.ended() == 0
    outcomes = {name for name, value in series.items() if "{" in name and value}
    assert {"completed", "looped", "refused", "broken", "remembered"} <= {
        name.rpartition("{")[2].rstrip("}") for name in outcomes
    }
    assert {200, 400, 401, 404, 502} <= set(statuses)
    assert PLANTED not in str(series)
    log = "".join(command.lines)
    assert len(command.lines) >= 24
    assert PLANTED not in log
    assert "hello" not in log
    for line in command.lines:
        json.loads(line)


async def test_request_is_sent_on_as_it_is(guarded: Guard) -> None:
    """The model is told nothing: each attempt gets the same body, which is the caller's."""
    request = REQUEST | {"temperature": 0.5, "provider": {"order": ["x"]}, "unknown": [1, None]}
    async with guarded([loop(), loop(), GOOD]) as ours:
        await ask(ours, request)
        bodies = [attempt.json for attempt in ours.fake.attempts]
        expected = request | {"stream": True, "stream_options": {"include_usage": True}}
        assert bodies == [expected] * 3


async def test_body_that_asks_for_all_of_it_is_sent_byte_for_byte(guarded: Guard) -> None:
    """A body that is a stream with its usage already is sent on byte for byte."""
    body = (
        b'{ "stream" : true,"stream_options":{"include_usage":true}, "x":1.0e5, "model":"\\u0041"}'
    )
    async with guarded([GOOD]) as ours:
        await ask(ours, body)
        assert ours.fake.attempts[0].body == body
