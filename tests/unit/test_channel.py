"""Two ends that ask each other."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from loopguard.channel import Channel, Failed, Gone
from loopguard.errors import ModelResponseLoop


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Channel, Channel]]:
    one, other = [await Channel.open(end) for end in socket.socketpair()]
    running = [asyncio.create_task(channel.run()) for channel in (one, other)]
    yield one, other
    one.close()
    await asyncio.gather(*running)


async def test_answers_come_to_their_questions() -> None:
    """Questions asked at once are answered as each answer is there, in either direction."""
    gate = asyncio.Event()

    async def slow(text: str) -> str:
        await gate.wait()
        return text

    async def quick(text: str) -> str:
        gate.set()
        return text

    async with connected() as (one, other):
        other.answers["slow"] = slow
        one.answers["quick"] = quick
        assert await asyncio.gather(
            one.ask("slow", "a" * 100_000), one.ask("slow", "b"), other.ask("quick", "c")
        ) == ["a" * 100_000, "b", "c"]


async def test_errors_of_loopguard_cross() -> None:
    """An error that callers are told is the same on the other side."""

    async def tell(error: ModelResponseLoop) -> ModelResponseLoop:
        return error

    error = ModelResponseLoop("looped", retry_after_s=2.0, details={"attempts": 4})
    async with connected() as (one, other):
        other.answers["tell"] = tell
        told = await one.ask("tell", error)
    assert (told.message, vars(told)) == (error.message, vars(error))


async def test_no_answer() -> None:
    """Whoever asks is told that the other side failed, is silent or is gone; nothing hangs."""

    async def fail() -> None:
        raise ZeroDivisionError

    async with connected() as (one, other):
        other.answers |= {"fail": fail, "wait": asyncio.Event().wait}
        with pytest.raises(Failed, match="ZeroDivisionError"):
            await one.ask("fail")
        with pytest.raises(Failed, match="KeyError"):
            await one.ask("unknown")
        with pytest.raises(Gone):
            await one.ask("wait", within_s=0.01)
        waiting = asyncio.create_task(one.ask("wait"))
        await asyncio.sleep(0)
        other.close()
        with pytest.raises(Gone):
            await waiting
        with pytest.raises(Gone):
            await one.ask("fail")
