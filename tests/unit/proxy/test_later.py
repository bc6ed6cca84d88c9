"""What nobody waits for is done a moment later, or when somebody asks."""

import asyncio
from itertools import pairwise

import pytest

from loopguard.proxy.later import Later


def test_work_is_done_in_its_order():
    """What is added is done by itself, in the order in which it came."""

    async def run() -> list[int]:
        done: list[int] = []
        last = asyncio.Event()
        later = Later()
        for number in range(3):
            later.add(lambda number=number: done.append(number))
        later.add(last.set)
        assert done == []
        await last.wait()
        return done

    assert asyncio.run(run()) == [0, 1, 2]


def test_others_have_their_turn_meanwhile():
    """Of much work little is done in one turn of the event loop."""

    async def run() -> list[int]:
        done: list[int] = []
        seen: list[int] = []
        later = Later()
        for number in range(1_000):
            later.add(lambda number=number: done.append(number))
        while len(done) < 1_000:
            await asyncio.sleep(0)
            seen.append(len(done))
        return [after - before for before, after in pairwise(seen)]

    assert max(asyncio.run(run())) < 100


def test_whoever_asks_has_it_done_at_once():
    """What waits is done when somebody asks, and once."""

    async def run() -> list[str]:
        done: list[str] = []
        later = Later()
        later.add(lambda: done.append("work"))
        later.catch_up()
        later.catch_up()
        return done

    assert asyncio.run(run()) == ["work"]


def test_a_fault_keeps_nothing_else_from_being_done():
    """Work that fails is told of, and what waits behind it is done all the same."""

    def fail() -> None:
        raise ZeroDivisionError

    async def run() -> None:
        done = asyncio.Event()
        later = Later()
        later.add(fail)
        later.add(done.set)
        with pytest.raises(ZeroDivisionError):
            later.catch_up()
        await done.wait()

    asyncio.run(run())
