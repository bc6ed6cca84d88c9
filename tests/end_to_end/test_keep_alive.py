"""Comments hold the line open while a reply is held, and while the next attempt is waited for."""

import asyncio
import json
import socket
from typing import Any

import openai
import pytest
from aiohttp import web

from tests.end_to_end.conftest import Guard, Guarded
from tests.end_to_end.raw_caller import REQUEST, STREAM, ask, calling, turning_until
from tests.fake_openrouter import DONE, Line, Refusal, Reply, Step, head, loop, stall, wait

GOOD = Reply("The good answer.")
EVENTS = list(GOOD.events())
# No machine is so busy that it rests between two events of these.
AT_ONCE = [head(), b"".join(EVENTS)]
COMMENT = b": loopguard keep-alive\n\n"
SOON = {"server__keepalive_s": "0.01"}


def text_of(body: bytes) -> str:
    """What the events of a body say."""
    lines = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: ")]
    chunks = [json.loads(line) for line in lines if line != b"[DONE]"]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def until_opened(ours: list[Guarded]) -> Step:
    """The upstream's silence, until the head of the caller's stream has left."""

    async def play(_: Line) -> None:
        (guarded,) = ours
        (exchange,) = guarded.api._routes.exchanges
        await turning_until(lambda: exchange._caller.opened)

    return play


async def test_holding(guarded: Guard) -> None:
    """While a reply is held there is a comment each time one is due, and the reply follows."""
    gate = asyncio.Event()
    async with guarded([[head(), *EVENTS[:3], wait(gate), *EVENTS[3:]]], **SOON) as ours:
        async with calling(ours, STREAM) as caller:
            await caller.until(COMMENT * 3)
            assert caller.body.replace(COMMENT, b"") == b""
            gate.set()
            await caller.whole()
        assert text_of(caller.body) == "The good answer."
        assert caller.body.endswith(DONE)
        assert caller.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert ours.records[0].outcome == "completed"


@pytest.mark.parametrize("silence", [[stall], [head(), stall]], ids=["before", "after the head"])
async def test_upstream_that_is_silent(guarded: Guard, silence: list[Step]) -> None:
    """Comments come while the upstream is silent, before its head and after it."""
    async with guarded([silence], **SOON) as ours, calling(ours, STREAM) as caller:
        await ours.fake.attempt(1)
        await caller.until(COMMENT * 2)
        assert len(ours.fake.attempts) == 1


async def test_waiting(guarded: Guard) -> None:
    """Comments come while the next attempt is waited for, and the wait is none the shorter."""
    gate = asyncio.Event()

    async def sleep(_: float) -> None:
        await gate.wait()

    async with guarded([Refusal(503, retry_after=5), GOOD], **SOON) as ours:
        object.__setattr__(ours.api._routes.service.shared, "sleep", sleep)
        async with calling(ours, STREAM) as caller:
            await caller.until(COMMENT * 3)
            assert len(ours.fake.attempts) == 1
            gate.set()
            await caller.whole()
        assert text_of(caller.body) == "The good answer."


@pytest.mark.parametrize("status", [400, 429, 503])
async def test_early_failure_keeps_its_status(guarded: Guard, status: int) -> None:
    """Until the first comment is due the head has not left: what fails has its status."""
    async with guarded([Refusal(status)], server__keepalive_s="15") as ours:
        caller = await ask(ours, STREAM)
        assert caller.status == status
        assert caller.headers["content-type"] == "application/json"


async def test_failure_after_the_head(guarded: Guard) -> None:
    """Once the head has left an upstream's refusal is told in the stream, and ends it."""
    ours: list[Guarded] = []
    script = [[until_opened(ours), *Refusal(402).steps()]]
    async with guarded(script, **SOON) as started:
        ours.append(started)
        caller = await ask(started, STREAM)
        assert caller.status == 200
        assert caller.error["code"] == 402
        assert caller.error["message"].startswith("This request requires more credits")
        assert DONE not in caller.body
        with pytest.raises(openai.APIError, match="more credits"):
            await chunks_of(started)


async def test_loop_after_the_head(guarded: Guard) -> None:
    """Once the head has left a loop is told in the stream with code 400 and the figures before."""
    ours: list[Guarded] = []
    script = [[until_opened(ours), head(), *loop().events()], loop()]
    async with guarded(script, **SOON) as started:
        ours.append(started)
        caller = await ask(started, STREAM)
        assert (caller.error["code"], caller.error["type"]) == (400, "model_response_loop")
        figures = b"attempts=4 loop-aborts=4 loop-abort-words=3840 loop-abort-chars=15360"
        assert caller.body.replace(COMMENT, b"").startswith(b": loopguard " + figures + b"\n\n")


async def test_none(guarded: Guard) -> None:
    """With 0 there is no comment, and the head leaves with the reply."""
    environment = {"server__keepalive_s": "0", "profiles__default__stream_idle_s": "0.1"}
    async with guarded([[head(), *EVENTS[:3], stall], AT_ONCE], **environment) as ours:
        caller = await ask(ours, STREAM)
        assert caller.headers["x-loopguard-attempts"] == "2"
        assert caller.body.startswith(b": loopguard attempts=2\n\ndata: ")
        assert COMMENT not in caller.body


async def test_whole_replies_get_none(guarded: Guard) -> None:
    """A caller that asked for no stream gets no comment, however long it takes."""
    environment = SOON | {"profiles__default__stream_idle_s": "0.1"}
    async with guarded([[head(), *EVENTS[:3], stall], AT_ONCE], **environment) as ours:
        caller = await ask(ours, REQUEST)
        assert json.loads(caller.body)["choices"][0]["message"]["content"] == "The good answer."


async def test_none_within_an_answer_by_status(guarded: Guard) -> None:
    """While a caller is slow to take an answer by status no comment comes between."""
    gate = asyncio.Event()
    refusal = [wait(gate), *Refusal(400, message="x" * 1_000_000).steps()]
    async with guarded([refusal]) as ours, calling(ours, STREAM) as caller:
        await ours.fake.attempt(1)
        (exchange,) = ours.api._routes.exchanges
        transport = exchange._caller._request.transport
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        caller._writer.transport.pause_reading()
        gate.set()
        await turning_until(lambda: transport.get_write_buffer_size() > 1 << 16)
        assert exchange._caller._timer.cancelled()
        caller._writer.transport.resume_reading()
        await caller.whole()
        assert caller.status == 400
        assert caller.error["message"] == "x" * 1_000_000


async def test_nothing_follows_the_end(guarded: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    """No comment follows the end of the stream, however long the caller takes to take it."""
    write_eof = web.StreamResponse.write_eof

    async def slow_eof(response: web.StreamResponse, data: bytes = b"") -> None:
        await asyncio.sleep(0.1)
        await write_eof(response, data)

    async with guarded([GOOD], **SOON) as ours:
        monkeypatch.setattr(web.StreamResponse, "write_eof", slow_eof)
        caller = await ask(ours, STREAM)
        assert caller.body.endswith(DONE)


async def chunks_of(guarded: Guarded) -> list[Any]:
    async with guarded.client() as client:
        stream = await client.chat.completions.create(**STREAM)
        return [chunk async for chunk in stream]


async def test_the_openai_clients_pass_over_comments(guarded: Guard) -> None:
    """Both openai clients read the held reply as if there had been no comments."""
    ours: list[Guarded] = []
    script = [[until_opened(ours), head(), *EVENTS]]
    async with guarded(script, **SOON) as started:
        ours.append(started)
        chunks = await chunks_of(started)

        def ask_and_wait() -> list[Any]:
            with openai.OpenAI(base_url=started.origin + "/v1", api_key="k") as client:
                return list(client.chat.completions.create(**STREAM))

        for read in (chunks, await asyncio.to_thread(ask_and_wait)):
            said = [chunk.choices[0].delta.content or "" for chunk in read if chunk.choices]
            assert "".join(said) == "The good answer."
