"""What an open console costs the streams: of two commands under the same load one has pages open.

    python -m tests.benchmarks.parts.console [--rounds 14] [--samples FILE]

A page is one stream of `/console/now`, read as it comes. Two `loopguard serve` stand on one core,
each before fifty streams of fifty chunks a second. For a second one of them has pages open, then
the other one; the figure of a round is how much more processor the chunks cost with pages, over
both seconds. Whatever else the machine does meets both in the same second, and what sets one
command apart is taken back in the other second. Told is the median of the rounds and the interval
that holds it at 95 % by the sign test, which asks nothing of how the noise is spread.

A quiet machine is seldom had for long: with `--samples` the rounds are added to those of earlier
runs, and the figures are of all of them.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from math import comb, sqrt
from pathlib import Path
from statistics import median

import uvloop

from tests.benchmarks.callers import Caller, call_spread
from tests.benchmarks.launch import LOAD_CORE, cpu_s, started
from tests.benchmarks.loads import PACED_PER_S, PACED_STREAMS
from tests.benchmarks.relays import Relay, loopguard
from tests.benchmarks.upstream import TEXTS, Asked
from tests.ports import free_port

PAGES = (1, 10)
BOUNDS = {1: 0.02, 10: 0.10}
CONFIDENCE = 0.95

ROW_BYTES = 200
"""What an exchange takes of an event at the least."""

SETTLE_S = 0.2
"""By then the pages are open, and those of the turn before are gone."""


@asynccontextmanager
async def opened(port: int, pages: int) -> AsyncIterator[list[int]]:
    """Follow the stream as so many pages do; yields how many bytes each has read."""
    read = [0] * pages

    async def follow(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(b"GET /console/now HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            while piece := await reader.read(65_536):
                read[number] += len(piece)
        finally:
            writer.close()

    following = [asyncio.create_task(follow(number)) for number in range(pages)]
    try:
        yield read
    finally:
        for page in following:
            page.cancel()
        await asyncio.gather(*following, return_exceptions=True)


async def cost_ratio(looked_at: Relay, other: Relay, pages: int) -> float:
    """Processor time of a second with pages, as a multiple of that of the command without."""
    assert looked_at.pid
    assert looked_at.admin_port
    assert other.pid
    async with opened(looked_at.admin_port, pages) as read:
        await asyncio.sleep(SETTLE_S)
        began_s = cpu_s(looked_at.pid), cpu_s(other.pid)
        await asyncio.sleep(1)
        ended_s = cpu_s(looked_at.pid), cpu_s(other.pid)
    assert all(size > PACED_STREAMS * ROW_BYTES for size in read), "rows are missing"
    await asyncio.sleep(SETTLE_S)
    return (ended_s[0] - began_s[0]) / (ended_s[1] - began_s[1])


async def streaming(relay: Relay, lasts_s: float) -> list[Caller]:
    """Begin the streams, evenly over the time between two chunks."""
    chunks = int(lasts_s * PACED_PER_S)
    many = [
        Asked(chunks, PACED_PER_S, text=number % TEXTS, number=number)
        for number in range(PACED_STREAMS)
    ]
    return await call_spread(relay.port, relay.headers, many, 1 / PACED_PER_S / PACED_STREAMS)


async def measured(relays: tuple[Relay, Relay], rounds: int) -> dict[int, list[float]]:
    """By how much the chunks cost more with so many pages, of every round."""
    lasts_s = 2 + rounds * len(PAGES) * 2 * (1 + 2 * SETTLE_S) * 1.1
    callers = [caller for relay in relays for caller in await streaming(relay, lasts_s)]
    await asyncio.sleep(1)  # what only the first chunks cost
    rises: dict[int, list[float]] = {pages: [] for pages in PAGES}
    for number in range(rounds):
        for pages in PAGES if number % 2 else reversed(PAGES):
            one = await cost_ratio(*relays, pages)
            swapped = await cost_ratio(*reversed(relays), pages)
            rises[pages].append(sqrt(one * swapped) - 1)
    for caller in callers:
        caller.leave()
    await asyncio.gather(*(caller.done for caller in callers), return_exceptions=True)
    return rises


def interval(values: list[float]) -> tuple[float, float]:
    """The order statistics between which the median is, by the sign test.

    Raises:
        IndexError: so few values say nothing.
    """
    ordered = sorted(values)
    outside, tail = 0, 0.0
    while tail + comb(len(ordered), outside) / 2 ** len(ordered) <= (1 - CONFIDENCE) / 2:
        tail += comb(len(ordered), outside) / 2 ** len(ordered)
        outside += 1
    if not outside:
        raise IndexError("too few rounds")
    return ordered[outside - 1], ordered[-outside]


def add(path: Path, rises: dict[int, list[float]]) -> dict[int, list[float]]:
    """Put the rounds to those of a file, and return all of them."""
    before = json.loads(path.read_text()) if path.exists() else {}
    whole = {pages: before.get(str(pages), []) + rises[pages] for pages in PAGES}
    path.write_text(json.dumps(whole))
    return whole


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=14)
    parser.add_argument("--samples", type=Path, metavar="FILE")
    asked = parser.parse_args()
    with ExitStack() as running:
        port = free_port()
        upstream = [sys.executable, "-m", "tests.benchmarks.upstream", str(port)]
        running.enter_context(started(upstream, port, [LOAD_CORE]))
        relays = (
            running.enter_context(loopguard("one", port)),
            running.enter_context(loopguard("other", port)),
        )
        rises = uvloop.run(measured(relays, asked.rounds))
    if asked.samples is not None:
        rises = add(asked.samples, rises)
    for pages, bound in BOUNDS.items():
        low, high = interval(rises[pages])
        print(
            f"{pages} pages: {median(rises[pages]):+.2%} of the processor per chunk, "
            f"{low:+.2%} to {high:+.2%} at {CONFIDENCE:.0%} in {len(rises[pages])} rounds; "
            f"the bound is {bound:.0%}"
        )


if __name__ == "__main__":
    main()
