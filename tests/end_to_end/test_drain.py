"""SIGTERM: what runs may end, what comes is refused, and the port is free at once."""

import asyncio
import json

import aiohttp
import pytest

from tests.end_to_end.command import Command, serving
from tests.end_to_end.conftest import Guard
from tests.end_to_end.raw_caller import (
    REQUEST,
    STREAM,
    RawCaller,
    asked,
    calling,
    connected,
    turning_until,
)
from tests.fake_openrouter import DONE, FakeOpenRouter, Message, Refusal, Reply, head, stall, wait

GOOD = Reply("The good answer.")
EVENTS = list(GOOD.events())


async def status_of(url: str) -> int:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status


async def begin_drain(command: Command) -> None:
    command.terminate()
    await command.line("draining")


def assert_draining(caller: RawCaller) -> None:
    assert (caller.error["code"], caller.error["type"]) == (503, "draining")


@pytest.mark.parametrize("mode", ["held", "whole", "live"])
async def test_running_exchanges_end(mode: str) -> None:
    """What runs at SIGTERM ends as if nothing were; meanwhile readiness is red, what comes 503."""
    gate = asyncio.Event()
    body, headers = asked(mode)
    async with (
        FakeOpenRouter([[head(), *EVENTS[:2], wait(gate), *EVENTS[2:]]]) as fake,
        serving(fake.base_url) as command,
        connected(command.port) as running,
        connected(command.port) as kept,
    ):
        assert await status_of(f"{command.admin}/readyz") == 200
        await running.send(body, headers=headers)
        await fake.attempt(1)
        await begin_drain(command)
        assert await status_of(f"{command.admin}/readyz") == 503
        assert await status_of(f"{command.admin}/healthz") == 200
        async with connected(command.port) as new:
            for refused in (new, kept):  # on a new connection and on one that was there
                await refused.send(REQUEST)
                await refused.whole()
                assert refused.status == 503
                assert refused.headers["retry-after"] == "30"
                assert refused.headers["connection"] == "close"
                assert "x-should-retry" not in refused.headers
                assert_draining(refused)
        assert len(fake.attempts) == 1
        gate.set()
        await running.whole()
        assert running.status == 200
        assert b"answer" in running.body
        assert (DONE in running.body) == (mode != "whole")
        assert await command.ended() == 0
        assert any('"outcome": "completed"' in line for line in command.lines)


async def test_delay(guarded: Guard) -> None:
    """During the delay readiness is red, and what comes is served for the last time."""
    async with guarded([GOOD], server__drain_delay_s="600") as ours:
        port = ours.loopguard.api_port
        async with connected(port) as kept:
            await kept.send(REQUEST)
            await kept.whole()
            assert "connection" not in kept.headers
        draining = asyncio.create_task(ours.loopguard.drain())
        await turning_until(lambda: ours.api._routes.draining)
        assert await status_of(f"{ours.admin}/readyz") == 503
        for mode in ("held", "whole", "live"):
            body, headers = asked(mode)
            async with connected(port) as caller:
                await caller.send(body, headers=headers)
                assert b"answer" in await caller.whole()
                assert caller.headers["connection"] == "close"
                assert await caller._reader.read() == b""
        draining.cancel()
    assert [record.outcome for record in ours.records] == ["completed"] * 4


@pytest.mark.parametrize("mode", ["held", "whole", "live"])
async def test_what_does_not_end_is_told(mode: str) -> None:
    """What still runs after the drain's time is ended in the form that its caller takes."""
    body, headers = asked(mode)
    async with (
        FakeOpenRouter([[head(), *EVENTS[:2], stall]]) as fake,
        serving(fake.base_url, server__drain_s="0.1") as command,
        connected(command.port) as running,
    ):
        await running.send(body, headers=headers)
        attempt = await fake.attempt(1)
        if mode == "live":
            await running.until(b"The good")
        command.terminate()
        await running.whole()
        assert running.status == (200 if mode == "live" else 503)
        assert_draining(running)
        assert DONE not in running.body
        await attempt.left()
        assert len(fake.attempts) == 1
        assert await command.ended() == 0
        assert any('"outcome": "drained"' in line for line in command.lines)


async def test_open_stream_is_told_inside(guarded: Guard) -> None:
    """A held stream whose head has left with a comment is ended by an error event."""
    async with guarded([[head(), stall]], server__keepalive_s="0.01", server__drain_s="0") as ours:
        async with calling(ours, STREAM) as caller:
            await caller.until(b"keep-alive")
            await ours.loopguard.drain()
            await caller.whole()
        assert caller.status == 200
        assert_draining(caller)


async def test_wait_is_not_waited_for(guarded: Guard) -> None:
    """An exchange that waits for its next attempt is ended, and makes none."""
    script = [Refusal(503, retry_after=30)]
    async with guarded(script, server__drain_s="0") as ours:
        async with calling(ours) as caller:
            await ours.fake.attempt(1)
            await turning_until(
                lambda: any(exchange._outcomes for exchange in ours.api._routes.exchanges)
            )
            await ours.loopguard.drain()
            await caller.whole()
        assert caller.status == 503
        assert_draining(caller)
        assert len(ours.fake.attempts) == 1


async def test_slow_caller_does_not_stop_the_end() -> None:
    """A caller who does not take its reply does not keep the process from ending well."""
    reply = Reply(Message("".join(f"word{n} " for n in range(1_400_000))), delta_chars=50_000)
    async with (
        FakeOpenRouter([reply]) as fake,
        serving(
            fake.base_url,
            server__drain_s="0.1",
            profiles__default__loop_detection__enabled="false",
            profiles__default__stretch_detection__enabled="false",
        ) as command,
        connected(command.port) as slow,
    ):
        await slow.send(STREAM)
        await slow.head()
        slow._writer.transport.pause_reading()
        command.terminate()
        assert await command.ended() == 0
        assert "Traceback" not in "".join(command.lines)
        assert not any('"level": "error"' in line for line in command.lines)


async def test_passed_through_requests_end_too() -> None:
    """What is passed through is waited for as well."""
    async with (
        FakeOpenRouter() as fake,
        serving(fake.base_url) as command,
        connected(command.port) as running,
    ):
        await running.send(b"first", path="/v1/echo", headers={"Content-Length": "9"})
        await running.until(b"first")
        await begin_drain(command)
        assert await status_of(f"{command.admin}/readyz") == 503
        await running.write(b"last")
        assert await running.whole() == b"firstlast"
        assert await command.ended() == 0


async def test_port_is_free_at_once() -> None:
    """A second process takes the port as soon as the first has ended, connections or not."""
    async with FakeOpenRouter([GOOD]) as fake, serving(fake.base_url) as first:
        async with connected(first.port) as caller:
            await caller.send(REQUEST)
            await caller.whole()
            first.terminate()
            assert await first.ended() == 0
        async with (
            serving(fake.base_url, server__port=str(first.port)) as second,
            connected(second.port) as caller,
        ):
            assert second.port == first.port
            await caller.send(REQUEST)
            reply = json.loads(await caller.whole())
            assert reply["choices"][0]["message"]["content"] == "The good answer."
            second.terminate()
            assert await second.ended() == 0
