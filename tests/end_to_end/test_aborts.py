"""Thousands of callers leave; nothing of them stays behind.

The command runs as a process of its own, so that its memory and its open files are its own. Where
`LOOPGUARD_ABORTS` asks for more exchanges than the suite can wait for, so many are aborted.
"""

import asyncio
import os
from itertools import cycle, islice
from pathlib import Path

import pytest

from tests.end_to_end.command import Command, serving
from tests.end_to_end.conftest import Guard
from tests.end_to_end.raw_caller import (
    PATIENCE_S,
    asked,
    calling,
    connected,
    metrics,
    turning_until,
)
from tests.fake_openrouter import FakeOpenRouter, Refusal, Reply, head, loop, stall

ABORTS = int(os.environ.get("LOOPGUARD_ABORTS", "2000"))
WARM_UP = 500
AT_ONCE = 50

# Allocators and the ledger's page cache fill up: 6 MB at most were seen, after 40,000. Beyond that
# an exchange, which holds some 20 kB while it runs, may not leave half a kilobyte.
LEVEL_BYTES = 6_000_000 + 500 * ABORTS

EVENTS = list(Reply("some words of an answer that goes on for a while").events())
SUSPECT = list(loop(chars=3_000, delta_chars=500).events())[:-3]
ANSWERS = [
    [stall],
    [head(), stall],
    [head(), *EVENTS[:4], stall],
    [head(), *SUSPECT, stall],
    Refusal(503, retry_after=30),
]
MODES = ("held", "whole", "live")


async def abort(fake: FakeOpenRouter, port: int, mode: str, number: str) -> None:
    """Ask, and leave as soon as the upstream has been asked."""
    body, headers = asked(mode)
    async with connected(port) as caller:
        await caller.send(body, headers=headers | {"X-Number": number})
        await fake.until(
            lambda: any(
                request.headers["x-number"] == number for request in fake.requests[-AT_ONCE:]
            )
        )
        caller.leave()


async def abort_many(fake: FakeOpenRouter, port: int, exchanges: int) -> None:
    """Abort so many exchanges, a bounded number at once, in every phase and mode in turn."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(mode: str, number: int) -> None:
        async with gate:
            await abort(fake, port, mode, str(number))

    for begun in range(0, exchanges, WARM_UP):
        batch = min(WARM_UP, exchanges - begun)
        # What the fake keeps of the requests would grow with them.
        fake.requests.clear()
        fake.connections.clear()
        fake.generations.clear()
        fake._keys.clear()
        fake.script = [*islice(cycle(ANSWERS), batch), Refusal(500)]
        await asyncio.gather(*map(one, cycle(MODES), range(batch)))


async def settled(command: Command, exchanges: int) -> dict[str, float]:
    """The series of a scrape that began when so many exchanges had ended.

    What is held is summed up when a scrape begins, and an exchange may end before it is written.
    """
    ended = 0.0
    async with asyncio.timeout(PATIENCE_S):
        while ended < exchanges:
            ended = (await metrics(command.admin)).get("loopguard_exchanges_total", 0)
        return await metrics(command.admin)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
async def test_aborts_leave_nothing_behind() -> None:
    """After thousands of aborted exchanges all gauges are at zero, memory and files level."""
    async with FakeOpenRouter() as fake, serving(fake.base_url) as command:
        await abort_many(fake, command.port, WARM_UP)
        await settled(command, WARM_UP)
        files, memory_bytes = command.open_files(), command.memory_bytes()
        await abort_many(fake, command.port, ABORTS)
        series = await settled(command, WARM_UP + ABORTS)
        grown_bytes = command.memory_bytes() - memory_bytes
        print(
            f"{ABORTS} aborted exchanges after {WARM_UP}: {grown_bytes / 1e6:+.2f} MB of "
            f"{memory_bytes / 1e6:.1f} MB, {command.open_files() - files:+d} open files"
        )
        assert series["loopguard_exchanges_total{departed}"] == WARM_UP + ABORTS
        assert series["loopguard_exchanges_in_flight"] == 0
        assert series["loopguard_open_upstreams"] == 0
        assert series["loopguard_held_bytes"] == 0
        # The connections that wait for a next request are at most those that were open at once.
        assert command.open_files() <= files + AT_ONCE
        assert grown_bytes < LEVEL_BYTES
        await fake.until(lambda: fake.open_streams == 0)


async def test_aborts_leave_no_task(guarded: Guard) -> None:
    """After hundreds of aborted exchanges there are the tasks that there were before the first."""
    exchanges = 300
    async with guarded([]) as ours:
        before = asyncio.all_tasks()
        await abort_many(ours.fake, ours.loopguard.api_port, exchanges)
        await turning_until(lambda: len(ours.records) == exchanges)
        assert {record.outcome for record in ours.records} == {"departed"}
        # Connections that were read to their end wait for the next request, with the fake's tasks.
        await turning_until(lambda: asyncio.all_tasks() - ours.fake._serving <= before)
        ours.fake.script = [Reply("still here")]
        async with calling(ours) as caller:
            assert b"still here" in await caller.whole()
