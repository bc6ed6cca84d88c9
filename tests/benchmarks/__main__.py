"""What loopguard costs, beside a passthrough that watches nothing and beside other proxies.

    python -m tests.benchmarks [--rounds 5] [--seconds 4] [--only LOAD ...] [--relays RELAY ...]
                               [--tries 1] [--save FILE]
    python -m tests.benchmarks.report FILE ...

All relays stand before one upstream. In every round each of them gets the same loads, one after the
other, so that a noisy machine moves all of them; what counts are the ratios inside a round. Relays
run on one core and both ends on another. `--save` keeps the figures, and `report` prints those of
several runs as one. LiteLLM and Portkey are there after `python -m tests.benchmarks.install`.
"""

import argparse
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import uvloop

from tests.benchmarks.callers import CallFailed, call_spread, ended
from tests.benchmarks.figures import OTHERS_SHARE, Figures, Sample
from tests.benchmarks.launch import LOAD_CORE, StartError, cpu_s, machine_cpu_s, started
from tests.benchmarks.loads import LOADS, Load, Upstream
from tests.benchmarks.machine import described
from tests.benchmarks.relays import STARTERS, AbsentError, Relay
from tests.benchmarks.report import report
from tests.benchmarks.upstream import Asked
from tests.ports import free_port


class Watched:
    """How busy the ends are, and the rest of the machine, since this was made."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._began_at = time.perf_counter()
        self._before = self._used_s()

    def _used_s(self) -> tuple[float, float]:
        ends_s = cpu_s(self._upstream.pid) + time.process_time()
        return ends_s, machine_cpu_s() - cpu_s(os.getpid())

    def shares(self) -> dict[str, float]:
        """In cores."""
        wall_s = time.perf_counter() - self._began_at
        ends_s, others_s = (
            after - before for after, before in zip(self._used_s(), self._before, strict=True)
        )
        return {"ends_share": ends_s / wall_s, "others_share": others_s / wall_s}


async def measured(
    load: Load, relay: Relay, upstream: Upstream, asked: argparse.Namespace
) -> dict[str, float]:
    """The figures of one load on one relay: the last try's, the first that nobody disturbed.

    Raises:
        CallFailed: the relay did not deliver.
    """
    for _ in range(asked.tries):
        watched = Watched(upstream)
        taken = await load(relay, upstream, asked.seconds) | watched.shares()
        if taken["others_share"] <= OTHERS_SHARE:
            break
    return taken


async def run(
    relays: list[Relay], upstream: Upstream, asked: argparse.Namespace, figures: Figures
) -> None:
    """Put every load on every relay, in turns."""
    for relay in relays:  # what only the first request costs
        warm_up = [Asked(500, text=number) for number in range(2)]
        await ended(await call_spread(relay.port, relay.headers, warm_up, 0))
    for number in range(asked.rounds):
        for name in asked.only:
            load, loaded = LOADS[name]
            turns = [relay for relay in relays if relay.name in loaded]
            for relay in turns if number % 2 else reversed(turns):
                try:
                    taken = await measured(load, relay, upstream, asked)
                except CallFailed as failure:
                    figures.notes.append(f"Load {name} on {relay.name} failed: {failure}.")
                    continue
                figures.samples += [
                    Sample(number, name, relay.name, figure, value)
                    for figure, value in taken.items()
                ]
                print(f"round {number + 1}: {name}, {relay.name}", file=sys.stderr)


def measure(asked: argparse.Namespace) -> Figures:
    """Start everything, measure, and stop it again."""
    os.sched_setaffinity(0, {LOAD_CORE})
    figures = Figures(described())
    wanted = {relay for load in asked.only for relay in LOADS[load][1]} & set(asked.relays)
    with ExitStack() as running:
        port = free_port()
        command = [sys.executable, "-m", "tests.benchmarks.upstream", str(port)]
        upstream = Upstream(port, running.enter_context(started(command, port, [LOAD_CORE])))
        relays = []
        for name in STARTERS:
            if name not in wanted:
                continue
            try:
                relays.append(running.enter_context(STARTERS[name](name, port)))
            except (AbsentError, StartError) as error:
                figures.notes.append(f"Absent: {error}.")
        figures.samples += [
            Sample(0, "start", relay.name, "idle_bytes", relay.idle_bytes)
            for relay in relays
            if relay.pid
        ]
        uvloop.run(run(relays, upstream, asked, figures))
    return figures


def main() -> None:
    """Run the benchmark and print its tables."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks",
        description=__doc__.partition("\n")[0],
        epilog=f"Loads: {', '.join(LOADS)}. Relays: {', '.join(STARTERS)}.",
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4, help="length of a load that has one")
    parser.add_argument(
        "--tries",
        type=int,
        default=1,
        choices=range(1, 10),
        metavar="N",
        help="of what other programs on the machine disturbed",
    )
    parser.add_argument("--only", nargs="+", default=list(LOADS), choices=LOADS, metavar="LOAD")
    parser.add_argument(
        "--relays", nargs="+", default=list(STARTERS), choices=STARTERS, metavar="RELAY"
    )
    parser.add_argument("--save", type=Path, metavar="FILE")
    asked = parser.parse_args()
    figures = measure(asked)
    if asked.save:
        figures.save(asked.save)
    print(report(figures))


if __name__ == "__main__":
    main()
