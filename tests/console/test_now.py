"""The stream of the exchanges in flight."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress

import pytest

from loopguard.console import now as module
from loopguard.console.now import Now
from loopguard.proxy.sight import Sights


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """When the sights were taken; a second is shortened to a few milliseconds."""
    monkeypatch.setattr(module, "INTERVAL_S", 0.01)
    return []


@pytest.fixture
def now(looks: list[int]) -> Now:
    async def look() -> Sights:
        looks.append(len(looks))
        return Sights(in_flight=len(looks), suspected=0, shown=[], newest_loop="")

    return Now(look)


async def first(events: AsyncIterator[bytes], count: int) -> list[int]:
    """How many exchanges so many events say that there are."""
    told = []
    async for event in events:
        assert event.startswith(b"data: ")
        assert event.endswith(b"\n\n")
        told.append(json.loads(event.removeprefix(b"data: "))["in_flight"])
        if len(told) == count:
            break
    return told


async def test_nothing_is_looked_at_while_no_page_is_open(now: Now, looks: list[int]) -> None:
    """The sights are taken from the first page that opens to the last that is left."""
    await asyncio.sleep(0)
    assert looks == []
    async with aclosing(now.follow()) as events:
        await first(events, 3)
        assert now.followers == 1
    assert now.followers == 0
    taken = len(looks)
    await asyncio.sleep(0.05)
    assert len(looks) == taken


async def test_ten_pages_are_told_of_one_look(now: Now, looks: list[int]) -> None:
    """However many pages are open, the sights are taken once a second."""

    async def page() -> list[int]:
        async with aclosing(now.follow()) as events:
            return await first(events, 5)

    told = await asyncio.gather(*(page() for _ in range(10)))
    assert told[0] == [1, 2, 3, 4, 5]
    assert all(each == told[0] for each in told)
    assert len(looks) <= 6


async def test_a_page_that_is_late_sees_the_newest(now: Now) -> None:
    """A page that takes an event late misses those between, and one that opens later none."""
    async with aclosing(now.follow()) as early, aclosing(now.follow()) as late:
        assert await first(late, 1) == [1]
        await first(early, 8)
        (told,) = await first(late, 1)
        assert told >= 8
        async with aclosing(now.follow()) as new:
            (told,) = await first(new, 1)
            assert told >= 8


async def test_a_look_that_fails_is_not_the_last(
    looks: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """A second in which nothing could be seen is left out, and told in the log."""

    async def look() -> Sights:
        looks.append(len(looks))
        if len(looks) == 2:
            raise OSError
        return Sights(in_flight=len(looks), suspected=0, shown=[], newest_loop="")

    async with aclosing(Now(look).follow()) as events:
        assert await first(events, 3) == [1, 3, 4]
    assert "cannot be looked at" in caplog.text


async def test_the_streams_end_with_the_process(now: Now) -> None:
    """Closing ends every stream at once, so that no drain waits for a page."""
    async with aclosing(now.follow()) as events:
        await first(events, 1)
        now.close()
        assert await first(events, 1) == []


async def test_a_page_that_is_left_is_forgotten(now: Now, looks: list[int]) -> None:
    """A stream whose reader is cancelled counts no more."""

    async def page() -> None:
        async with aclosing(now.follow()) as events:
            await first(events, 10_000)

    reading = asyncio.create_task(page())
    while len(looks) < 3:  # noqa: ASYNC110 - it is the page that moves on
        await asyncio.sleep(0.001)
    reading.cancel()
    with suppress(asyncio.CancelledError):
        await reading
    assert now.followers == 0
