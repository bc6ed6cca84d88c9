"""What an open console costs the streams: none, one and ten pages before the same load.

    python -m tests.benchmarks.parts.console [--rounds 12]

A page is one stream of `/console/now`, read as it comes. The figures are processor time of
`loopguard serve`, each number of pages in turns in every round, a second each. First fifty streams
are silent: what is used then is the pages' own, to a small part of a percent. Then fifty streams of
fifty chunks a second run, and the same seconds are taken of them; here the machine's noise is
larger than what is looked for, which is why both are told.
"""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from statistics import median

import uvloop

from tests.benchmarks.callers import Caller, call_spread
from tests.benchmarks.launch import LOAD_CORE, cpu_s, free_port, started
from tests.benchmarks.loads import PACED_PER_S, PACED_STREAMS
from tests.benchmarks.relays import Relay, loopguard
from tests.benchmarks.upstream import TEXTS, Asked

PAGES = (0, 1, 10)
SILENT_CHUNKS = 500
"""What each silent stream has said: half a thousand words, so that every rule has a level."""

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


async def used(relay: Relay, rounds: int) -> dict[int, list[float]]:
    """Processor time of a second with each number of pages, of every round."""
    assert relay.pid
    assert relay.admin_port
    loop = asyncio.get_running_loop()
    shares: dict[int, list[float]] = {pages: [] for pages in PAGES}
    for number in range(rounds):
        for pages in PAGES if number % 2 else reversed(PAGES):
            async with opened(relay.admin_port, pages) as read:
                await asyncio.sleep(SETTLE_S)
                began_s, began_at = cpu_s(relay.pid), loop.time()
                await asyncio.sleep(1)
                shares[pages].append((cpu_s(relay.pid) - began_s) / (loop.time() - began_at))
            assert all(size > PACED_STREAMS * ROW_BYTES for size in read), "rows are missing"
            await asyncio.sleep(SETTLE_S)
    return shares


async def streaming(relay: Relay, chunks: int, per_s: float, *, ends: bool) -> list[Caller]:
    """Begin the streams, evenly over the time between two chunks."""
    many = [
        Asked(chunks, per_s, text=number % TEXTS, ends=ends, number=number)
        for number in range(PACED_STREAMS)
    ]
    return await call_spread(relay.port, relay.headers, many, 1 / PACED_PER_S / PACED_STREAMS)


async def left(callers: list[Caller]) -> None:
    """Leave the streams."""
    for caller in callers:
        caller.leave()
    await asyncio.gather(*(caller.done for caller in callers), return_exceptions=True)


async def compare(relay: Relay, rounds: int) -> None:
    """Measure both and print them."""
    silent = await streaming(relay, SILENT_CHUNKS, 0, ends=False)
    await asyncio.sleep(1)
    alone = await used(relay, rounds // 3)
    await left(silent)
    lasts_s = (rounds + 1) * len(PAGES) * (1 + 2 * SETTLE_S)
    paced = await streaming(relay, int(lasts_s * PACED_PER_S), PACED_PER_S, ends=True)
    await asyncio.sleep(1)  # what only the first chunks cost
    loaded = await used(relay, rounds)
    await left(paced)
    chunks_per_s = PACED_PER_S * PACED_STREAMS
    load = median(loaded[0])
    for pages in PAGES:
        own = median(alone[pages]) - median(alone[0])
        ratios = [cost / none - 1 for cost, none in zip(loaded[pages], loaded[0], strict=True)]
        print(
            f"{pages} pages: {own * 1e3:.2f} ms of the processor a second, {own / load:.2%} of"
            f" the load's; in it {median(loaded[pages]) / chunks_per_s * 1e6:.1f} us per chunk,"
            f" {median(ratios):+.1%}"
        )


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=12)
    asked = parser.parse_args()
    with ExitStack() as running:
        port = free_port()
        upstream = [sys.executable, "-m", "tests.benchmarks.upstream", str(port)]
        running.enter_context(started(upstream, port, [LOAD_CORE]))
        relay = running.enter_context(loopguard("loopguard", port))
        uvloop.run(compare(relay, asked.rounds))


if __name__ == "__main__":
    main()
