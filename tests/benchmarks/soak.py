"""Whether a long run leaves anything behind: memory, sockets, tasks, exchanges.

    python -m tests.benchmarks.soak [--minutes 10] [--streams 200]

So many callers ask one after the other, held, live and whole: a tenth of them for a reply that
loops at first, and a tenth of them leaves in the middle. Memory is looked at every second; its
slope is that of the straight line through what was seen after the first fifth, in which pools and
the ledger's page cache fill. Then everything ends, and is counted. Status 1 says that something
was left behind.
"""

import argparse
import asyncio
import os
import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import linear_regression, median
from tempfile import TemporaryDirectory

import uvloop

from tests.benchmarks.callers import CallFailed, call, told
from tests.benchmarks.launch import LOAD_CORE, rss_bytes, sockets, started
from tests.benchmarks.machine import described
from tests.benchmarks.relays import Relay, loopguard
from tests.benchmarks.report import rounded, table
from tests.benchmarks.upstream import DELTA_CHARS, LOOP_CHARS, TEXTS, Asked
from tests.ports import free_port

WARM_UP_SHARE = 0.2
LEVEL_MIB = 6.0
"""What memory may rise by after that: what 40,000 aborted exchanges were seen to leave in pools."""

SETTLE_S = 60.0
"""Longer than the connections to the upstream wait for another request."""

LENGTHS_CHUNKS = (50, 500)
PACES_PER_S = (20, 50)
LOOPING_CHUNKS, LOOPING_PER_S = LOOP_CHARS // DELTA_CHARS, 200

_MODES = ("hold", "live", "whole")
_GAUGES = ("loopguard_exchanges_in_flight", "loopguard_open_upstreams", "loopguard_held_bytes")
_SERIES = re.compile(r"^(loopguard_\w+)(?:{[^}]*})? (\S+)$", re.MULTILINE)


@dataclass
class Run:
    """What is going on, and what was seen.

    Attributes:
        relay: loopguard.
        tasks_file: where it tells how many tasks it has.
        ends_at: when no further exchange begins.
        ended: exchanges, by how they were meant to end and whether they did.
        memory: seconds since the beginning, and MiB.
    """

    relay: Relay
    tasks_file: Path
    ends_at: float
    random: random.Random
    ended: Counter[str] = field(default_factory=Counter)
    memory: list[tuple[float, float]] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)

    @property
    def pid(self) -> int:
        """Of loopguard."""
        assert self.relay.pid
        return self.relay.pid

    async def metrics(self) -> Counter[str]:
        """Every series of loopguard's, summed over its labels."""
        assert self.relay.admin_port
        sums: Counter[str] = Counter()
        page = await told(self.relay.admin_port, "/metrics")
        for name, value in _SERIES.findall(page.decode()):
            sums[name] += float(value)  # type: ignore[assignment]  # a sum of gauges
        return sums

    async def tasks(self) -> int:
        """How many loopguard has."""
        self.tasks_file.unlink(missing_ok=True)
        os.kill(self.pid, signal.SIGUSR1)
        while not self.tasks_file.exists():  # noqa: ASYNC110  of another process
            await asyncio.sleep(0.01)
        return int(self.tasks_file.read_text())


async def ask_in_turns(run: Run) -> None:
    """Be one of the callers."""
    draw = run.random
    while time.monotonic() < run.ends_at:
        meant = draw.choices(["completed", "looped", "left"], [8, 1, 1])[0]
        mode = draw.choice(_MODES)
        chunks, per_s = draw.randint(*LENGTHS_CHUNKS), draw.uniform(*PACES_PER_S)
        asked = Asked(chunks, per_s, text=draw.randrange(TEXTS), number=next(run.numbers))
        if meant == "looped":
            asked = Asked(LOOPING_CHUNKS, LOOPING_PER_S, number=next(run.numbers), loops=1)
        headers = {"X-Loopguard-Relay": mode} if mode != "whole" else {}
        caller = await call(run.relay.port, headers, asked, stream=mode != "whole")
        if meant == "left":
            await asyncio.sleep(draw.uniform(0, chunks / per_s))
            caller.leave()
        try:
            await caller.done
            run.ended[meant] += 1
        except CallFailed as failure:
            # A loop that had begun to leave ends the stream with an error, and that is all right.
            expected = meant == "looped" and mode == "live"
            run.ended["looped" if expected else f"failed: {failure}"] += 1


async def watch(run: Run) -> None:
    """Look at the memory every second."""
    began_at = time.monotonic()
    while True:
        run.memory.append((time.monotonic() - began_at, rss_bytes(run.pid) / 2**20))
        await asyncio.sleep(1)


async def soak(run: Run, streams: int) -> Iterator[list[str]]:
    """Run, wait until all has settled, and say what is left: rows of what was wanted and seen."""
    await run.metrics()  # what the first look costs
    await asyncio.sleep(1)  # and its connection is closed
    sockets_before, tasks_before = sockets(run.pid), await run.tasks()
    watching = asyncio.create_task(watch(run))
    await asyncio.gather(*(ask_in_turns(run) for _ in range(streams)))
    watching.cancel()
    settled_by = time.monotonic() + SETTLE_S
    while time.monotonic() < settled_by:
        metrics = await run.metrics()
        left = {
            "sockets": sockets(run.pid) - sockets_before,
            "tasks": await run.tasks() - tasks_before,
            **{name: int(metrics[name]) for name in _GAUGES},
        }
        if not any(value > 0 for value in left.values()):
            break
        await asyncio.sleep(1)
    stall_ms = 1e3 * metrics["loopguard_event_loop_longest_stall_seconds"]
    print(f"\nLongest stall of the event loop: {stall_ms:.0f} ms.")
    return judged(run, left, metrics)


def judged(run: Run, left: dict[str, int], metrics: Counter[str]) -> Iterator[list[str]]:
    """Each figure, what is wanted of it, what was seen, and whether that is enough."""
    level = run.memory[int(len(run.memory) * WARM_UP_SHARE) :]
    slope = linear_regression(*zip(*level, strict=True)).slope
    rise_mib = slope * (level[-1][0] - level[0][0])
    met = rise_mib <= LEVEL_MIB
    seen = f"{rise_mib:+.1f} MiB, which is {slope * 3600:+.1f} MiB an hour"
    yield ["rise of the memory", f"<= {LEVEL_MIB:g} MiB", seen, _said(met)]
    for name, value in left.items():
        yield [f"{name} left", "0", str(value), _said(value <= 0)]
    failed = sum(times for meant, times in run.ended.items() if meant.startswith("failed"))
    yield ["exchanges that failed", "0", str(failed), _said(not failed)]
    cuts, looped = int(metrics["loopguard_loop_aborts_total"]), run.ended["looped"]
    yield ["loops cut", str(looped), str(cuts), _said(cuts == looped)]


def _said(met: bool) -> str:  # noqa: FBT001  the word for it
    return "yes" if met else "**no**"


def by_minute(memory: list[tuple[float, float]]) -> Iterator[list[str]]:
    """The median of each minute's memory."""
    for minute in range(int(memory[-1][0] // 60) + 1):
        seen = [mib for at, mib in memory if at // 60 == minute]
        yield [str(minute + 1), rounded(median(seen))]


def main() -> int:
    """Soak and print what was seen."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.soak", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--streams", type=int, default=200)
    asked = parser.parse_args()
    os.sched_setaffinity(0, {LOAD_CORE})
    with ExitStack() as running:
        port = free_port()
        command = [sys.executable, "-m", "tests.benchmarks.upstream", str(port)]
        running.enter_context(started(command, port, [LOAD_CORE]))
        tasks_file = Path(running.enter_context(TemporaryDirectory())) / "tasks"
        module, told_where = (
            "tests.benchmarks.parts.counting_tasks",
            {"TASKS_FILE": str(tasks_file)},
        )
        starting = loopguard("soak", port, module=[module], **told_where)
        relay = running.enter_context(starting)
        run = Run(relay, tasks_file, time.monotonic() + 60 * asked.minutes, random.Random(1))
        print("\n".join(f"* {line}" for line in described()))
        with suppress(KeyboardInterrupt):
            rows = list(uvloop.run(soak(run, asked.streams)))
    print(f"\n{asked.streams} streams at once for {asked.minutes:g} minutes:\n")
    print("\n".join(table(["exchanges", "number"], ([k, str(n)] for k, n in run.ended.items()))))
    print("\nMemory by the minute:\n")
    print("\n".join(table(["minute", "MiB"], by_minute(run.memory))))
    print("\nWanted and seen:\n")
    print("\n".join(table(["figure", "wanted", "seen", "met"], rows)))
    return int(any(row[-1] != "yes" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
