"""The fake is held to what OpenRouter was recorded to send, and to its own promises."""

import asyncio
import json
import socket
import struct
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import openai
import pytest

from tests.fake_openrouter import (
    DONE,
    PROCESSING,
    FakeOpenRouter,
    Message,
    Refusal,
    Reply,
    Request,
    Step,
    ToolCall,
    close,
    encrypted,
    event,
    fault,
    head,
    in_thread,
    loop,
    raw,
    reset,
    split_every,
    stall,
    summary,
    unreachable,
    wait,
)
from tests.samples import (
    EVERYTHING,
    RECORDED_KINDS,
    needs_recordings,
    recorded_exchanges,
    recorded_streams,
)

CHAT = {"model": "openai/gpt-4o-mini", "messages": [{"role": "user", "content": "hello"}]}


def blocks(stream: bytes) -> list[str]:
    text = stream.decode()
    assert "\r" not in text
    assert text.endswith("\n\n")
    return text.removesuffix("\n\n").split("\n\n")


def chunks(stream: bytes) -> list[dict[str, Any]]:
    return [json.loads(it[6:]) for it in blocks(stream) if it.startswith("data: {")]


def shapes(stream: bytes) -> set[tuple[object, ...]]:
    """Keys in their order, and the kinds of reasoning; values left out."""
    found: set[tuple[object, ...]] = set()
    for chunk in chunks(stream):
        for choice in chunk["choices"] or [{}]:
            delta = choice.get("delta", {})
            details = [tuple(part) for part in delta.get("reasoning_details", [])]
            found.add((*chunk, "|", *choice, "|", *delta, "|", *details))
    return found


@needs_recordings
def test_every_chunk_has_keys_and_order_of_a_recorded_one() -> None:
    """Every kind of chunk that was recorded is sent with the recorded keys in their order."""
    recorded = set().union(*(shapes(stream) for stream in recorded_streams().values()))
    for reply in RECORDED_KINDS:
        assert shapes(reply.stream()) <= recorded, reply


@needs_recordings
def test_framing_is_the_recorded_one() -> None:
    """Recorded streams and the fake's are made of the same blocks and end with the sentinel."""
    ours = [reply.stream() for reply in [*RECORDED_KINDS, EVERYTHING]]
    for stream in [*recorded_streams().values(), *ours]:
        body = blocks(stream)
        assert body[-1] == DONE.decode().strip()
        assert PROCESSING.decode().strip() == body[0]
        assert all(it.startswith(("data: {", ": OPENROUTER PROCESSING")) for it in body[:-1])


@needs_recordings
def test_a_recorded_chunk_written_again_is_the_same_bytes() -> None:
    """The fake writes JSON as OpenRouter does."""
    for stream in recorded_streams().values():
        for chunk in chunks(stream):
            if "usage" not in chunk:  # JavaScript writes small floats another way
                assert event(chunk) in stream


@needs_recordings
def test_the_usage_chunk_has_the_recorded_keys() -> None:
    """The usage object has the recorded keys in their order."""
    recorded = {tuple(chunks(stream)[-1]["usage"]) for stream in recorded_streams().values()}
    assert tuple(chunks(Reply("x").stream())[-1]["usage"]) in recorded


@needs_recordings
def test_a_whole_reply_has_the_keys_of_a_recorded_one() -> None:
    """Keys of the whole reply, its choices, messages, reasoning parts and calls were recorded."""
    wholes = [it["reply"] for it in recorded_exchanges() if "choices" in (it.get("reply") or {})]
    messages = [choice["message"] for it in wholes for choice in it["choices"]]

    def keys(*objects: dict[str, Any]) -> set[frozenset[str]]:
        return {frozenset(it) for it in objects}

    def parts(key: str, within: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [part for message in within for part in message.get(key, [])]

    ours = [reply.whole() for reply in RECORDED_KINDS]
    ours.append(Reply(Message(reasoning=(summary("hm"), encrypted("eA==")))).whole())
    ours.append(Reply(Message(tool_calls=(ToolCall("f", "{}", "1"),))).whole())
    our_messages = [choice["message"] for it in ours for choice in it["choices"]]
    assert keys(*ours) <= keys(*wholes)
    assert keys(*(it["choices"][0] for it in ours)) <= keys(*(it["choices"][0] for it in wholes))
    for key in ("reasoning_details", "tool_calls", "annotations"):
        assert keys(*parts(key, our_messages)) <= keys(*parts(key, messages))
    assert all({"role", "content", "refusal", "reasoning"} <= set(it) for it in our_messages)


@needs_recordings
async def test_heads_and_refusals_are_the_recorded_ones() -> None:
    """The recorded headers come with the recorded values; a 429 has the recorded keys."""
    stream, whole, refusal = (
        next(it for it in recorded_exchanges() if condition(it))
        for condition in (
            lambda it: "request-id" in str(it["headers"]) and it["request"]["stream"],
            lambda it: "request-id" in str(it["headers"]) and not it["request"]["stream"],
            lambda it: it["status"] == 429,
        )
    )
    script = [Reply("x"), Reply("x"), Refusal(429)]
    async with FakeOpenRouter(script) as fake, aiohttp.ClientSession() as session:
        for recorded, asks_stream in ((stream, True), (whole, False), (refusal, False)):
            body = CHAT | {"stream": asks_stream}
            async with session.post(fake.base_url + "/chat/completions", json=body) as response:
                assert response.status == recorded["status"]
                for name, value in recorded["headers"].items():
                    assert response.headers[name] == value
                assert response.headers["X-Generation-Id"].startswith("gen-1783514921-")
                if recorded is refusal:
                    answer = await response.json()
                    assert set(answer) == set(recorded["reply"])
                    assert set(recorded["reply"]["error"]["metadata"]) <= set(
                        answer["error"]["metadata"]
                    )


def test_stream_and_whole_are_one_reply() -> None:
    """The deltas of a stream, joined, are the whole reply of the same description."""
    whole = EVERYTHING.whole()
    said: list[dict[str, Any]] = [
        {"content": "", "reasoning": "", "refusal": "", "calls": ["", ""], "tokens": "", "rest": []}
        for _ in whole["choices"]
    ]
    for chunk in chunks(EVERYTHING.stream()):
        for choice in chunk["choices"]:
            delta, heap = choice["delta"], said[choice["index"]]
            for key in ("content", "reasoning", "refusal"):
                heap[key] += delta.get(key) or ""
            for call in delta.get("tool_calls", []):
                heap["calls"][call["index"]] += call["function"]["arguments"]
            for token in choice.get("logprobs", {}).get("content", []):
                heap["tokens"] += token["token"]
            heap["rest"] += delta.get("annotations", []) + delta.get("images", [])
            heap["finish"] = choice["finish_reason"]
    for heap, choice in zip(said, whole["choices"], strict=True):
        message = choice["message"]
        for key in ("content", "reasoning", "refusal"):
            assert heap[key] == (message[key] or "")
        calls = [call["function"]["arguments"] for call in message.get("tool_calls", [])]
        assert [text for text in heap["calls"] if text] == calls
        assert heap["tokens"] == (message["content"] if choice["logprobs"] else "")
        assert heap["rest"] == message.get("annotations", []) + message.get("images", [])
        assert heap["finish"] == choice["finish_reason"]
    assert chunks(EVERYTHING.stream())[-1]["usage"] == whole["usage"]


async def test_the_openai_client_reads_it() -> None:
    """The openai client gets the same answer streamed and whole, and byte by byte."""
    reply = Reply("hello wörld 🙂", comments=3, comment_every=1)
    script = [reply, reply, [split_every(1), head(), *reply.events()]]
    async with FakeOpenRouter(script) as fake, client(fake) as caller:
        stream = await caller.chat.completions.create(**CHAT, stream=True)
        assert await text_of(stream) == "hello wörld 🙂"
        whole = await caller.chat.completions.create(**CHAT)
        assert whole.choices[0].message.content == "hello wörld 🙂"
        stream = await caller.chat.completions.create(**CHAT, stream=True)
        assert await text_of(stream) == "hello wörld 🙂"
        assert fake.attempts[0].generation_id != whole.id == fake.attempts[1].generation_id
        await fake.until(lambda: all(request.answered for request in fake.attempts))


@pytest.mark.parametrize(
    "steps",
    [
        [head(), PROCESSING, fault(502, "Upstream error", "provider_unavailable", choices=False)],
        [head(), *list(Reply("hello").events())[:3], fault(429, "Rate limit exceeded")],
        [head(), fault("server_error", "Provider disconnected", generation_id="cmpl-abc123"), DONE],
        Reply("cut", fault={"code": 400, "message": "Token limit reached"}),
    ],
    ids=["without choices", "documented", "string code", "on the usage chunk"],
)
async def test_the_openai_client_raises_each_in_band_error(steps: Reply | list[Step]) -> None:
    """Each shape of an error inside a stream is one to the openai client."""
    async with FakeOpenRouter([steps]) as fake, client(fake) as caller:
        stream = await caller.chat.completions.create(**CHAT, stream=True)
        with pytest.raises(openai.APIError):
            await text_of(stream)


async def test_a_refusal_is_the_status_and_waits_as_long_as_it_says() -> None:
    """The script is taken in order; a refusal carries its status and Retry-After."""
    script = [Refusal(429, retry_after=2), Refusal(502), Reply("hello")]
    async with FakeOpenRouter(script) as fake, aiohttp.ClientSession() as session:
        seen = []
        for _ in range(4):
            async with session.post(fake.base_url + "/chat/completions", json=CHAT) as response:
                error = (await response.json()).get("error", {})
                assert error.get("code", 200) == response.status
                seen.append((response.status, response.headers.get("Retry-After")))
    assert seen == [(429, "2"), (502, None), (200, None), (200, None)]


@pytest.mark.parametrize(
    "steps",
    [
        [stall],
        [raw(b"HTTP/1.1 200 OK\r\nContent-Ty"), stall],
        [head(), stall],
        [head(), PROCESSING, stall],
        loop(),
    ],
    ids=["before the head", "in the head", "after the head", "after a comment", "in a loop"],
)
@pytest.mark.parametrize("reset_it", [False, True], ids=["close", "reset"])
async def test_a_caller_that_leaves_is_seen_at_once(
    steps: Reply | list[Step], *, reset_it: bool
) -> None:
    """A close and a reset are witnessed with their time, and the answer ends."""
    async with FakeOpenRouter([steps]) as fake:
        caller, request = await raw_caller(fake)
        assert request.connection.open
        assert fake.open_streams == 1
        if reset_it:
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        left_at = time.monotonic()
        caller.close()
        assert left_at <= await request.left() <= time.monotonic()
        await fake.until(lambda: fake.open_streams == 0)
        assert not request.connection.open
        assert not request.answered


@pytest.mark.parametrize("ending", [close, reset])
async def test_a_connection_is_broken_where_the_script_says(ending: Step) -> None:
    """The connection fails in mid-event, and it is not the caller who left."""
    events = list(Reply("hello").events())
    steps = [head(), *events[:2], events[2][:20], ending]
    async with FakeOpenRouter([steps]) as fake, aiohttp.ClientSession() as session:
        with pytest.raises((aiohttp.ClientPayloadError, aiohttp.ClientConnectionError)):
            await (await session.post(fake.base_url + "/chat/completions", json=CHAT)).read()
        assert fake.attempts[0].connection.left_at is None
        assert not fake.attempts[0].answered


async def test_a_test_decides_when_the_stream_goes_on() -> None:
    """An event that the test sets lets the rest of the stream out."""
    gate = asyncio.Event()
    events = list(Reply("hello").events())
    script = [[head(), *events[:2], wait(gate), *events[2:]]]
    async with FakeOpenRouter(script) as fake, client(fake) as caller:
        stream = aiter(await caller.chat.completions.create(**CHAT, stream=True))
        first = await anext(stream)
        assert first.choices[0].delta.content == "hello"
        assert not fake.attempts[0].answered
        gate.set()
        assert [it.choices[0].finish_reason async for it in stream] == ["stop", "stop"]


async def test_a_generation_is_priced_after_its_404s_and_only_for_its_key() -> None:
    """A look-up is answered as scripted, then with the record, then to that key alone."""
    script = [Refusal(502), loop()]
    lookups = [404, Refusal(429, retry_after=1)]
    async with FakeOpenRouter(script, lookups=lookups) as fake, aiohttp.ClientSession() as session:

        async def look(generation_id: str, key: str) -> tuple[int, Any]:
            async with session.get(
                fake.base_url + "/generation",
                params={"id": generation_id},
                headers={"Authorization": f"Bearer {key}"},
            ) as response:
                return response.status, await response.json()

        for number in (1, 2):
            caller, request = await raw_caller(fake, number)
            caller.close()
            await request.left()
        await fake.until(lambda: fake.open_streams == 0)
        refused, looped = (request.generation_id for request in fake.attempts)
        status, answer = await look(looped, "key")
        assert status == 404
        assert answer["error"]["message"] == f"Generation {looped} not found"
        assert (await look(looped, "key"))[0] == 429
        status, answer = await look(looped, "key")
        assert status == 200
        assert answer["data"]["id"] == looped
        assert answer["data"]["cancelled"] is True
        assert (await look(looped, "another"))[0] == 404
        assert [(await look(refused, "key"))[0] for _ in range(3)] == [404, 429, 404]
        assert [request.key for request in fake.lookups] == ["key"] * 3 + ["another"] + ["key"] * 3


async def test_other_paths_answer_as_json_gzip_and_echo() -> None:
    """Catalogue, embeddings and an echo that streams both ways stand beside the replies."""
    async with FakeOpenRouter() as fake, aiohttp.ClientSession(fake.base_url + "/") as session:
        gate = asyncio.Event()

        async def upload() -> AsyncIterator[bytes]:
            yield b"one "
            await gate.wait()
            yield b"two"

        async with session.get("models") as response:
            assert response.headers["Content-Encoding"] == "gzip"
            assert (await response.json())["data"]
        async with session.get("models", headers={"Accept-Encoding": "identity"}) as response:
            assert "Content-Encoding" not in response.headers
        async with session.post("embeddings", json={"model": "m", "input": "x"}) as response:
            assert (await response.json())["model"] == "m"
        async with session.put("echo", data=upload()) as response:
            assert await response.content.read(4) == b"one "
            gate.set()
            assert await response.content.read() == b"two"
        assert fake.requests[-1].body == b"one two"
        async with session.get("nowhere") as response:
            assert response.status == 404


def test_it_serves_a_test_that_blocks() -> None:
    """A synchronous client is served from a thread."""
    with (
        in_thread(FakeOpenRouter([Reply("hello")])) as fake,
        openai.OpenAI(base_url=fake.base_url, api_key="key") as caller,
    ):
        reply = caller.chat.completions.create(**CHAT)
    assert reply.choices[0].message.content == "hello"


def test_a_connection_to_the_unreachable_host_is_never_made() -> None:
    """A caller of that host waits until its own patience ends."""
    with unreachable() as base_url, socket.socket() as caller:
        caller.settimeout(0.2)
        with pytest.raises(TimeoutError):
            caller.connect(("127.0.0.1", urlsplit(base_url).port))


async def test_a_script_that_cannot_be_played_fails_the_test() -> None:
    """A step that raises is raised again where the test leaves the fake."""

    async def broken(_: object) -> None:
        raise ValueError("a broken step")

    async def play() -> None:
        async with FakeOpenRouter([[broken]]) as fake, aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ServerDisconnectedError):
                await session.post(fake.base_url + "/chat/completions", json=CHAT)

    with pytest.raises(ExceptionGroup, match="could not play"):
        await play()


def client(fake: FakeOpenRouter) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=fake.base_url, api_key="key", max_retries=0)


async def text_of(stream: openai.AsyncStream[Any]) -> str:
    return "".join([it.choices[0].delta.content or "" async for it in stream if it.choices])


async def raw_caller(fake: FakeOpenRouter, number: int = 1) -> tuple[socket.socket, Request]:
    """A bare socket that has sent its request and reads nothing."""
    caller = socket.create_connection(("127.0.0.1", fake.port))
    body = json.dumps(CHAT | {"stream": True}).encode()
    caller.sendall(
        b"POST /api/v1/chat/completions HTTP/1.1\r\nHost: fake\r\nAuthorization: Bearer key\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    return caller, await fake.attempt(number)
