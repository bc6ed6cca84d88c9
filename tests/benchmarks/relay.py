"""What watching costs: loopguard beside a passthrough that watches nothing.

    python -m tests.benchmarks.relay [--rounds 5] [--seconds 4]

Three relays stand before one upstream: the passthrough, and `loopguard serve` as it is shipped,
once asked for `live` and once for `hold`. In every round each of them gets the same loads, one
after the other, so that a noisy machine moves all of them; what counts are the ratios. The figures
are processor time of the relay's process tree, whatever it does (connecting, delivering, logging),
over the chunks that the upstream sent. Relays run on one core and all else on another.
"""

import argparse
import asyncio
import os
import platform
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from tempfile import TemporaryDirectory

import uvloop

from tests.benchmarks.accounting import cpu_s, rss_bytes
from tests.benchmarks.callers import ask
from tests.benchmarks.upstream import CHUNKS_PER_S

PACED_STREAMS = 50
BULK_STREAMS = 10
BULK_CHUNKS = 5_000
START_TIMEOUT_S = 30


@dataclass
class Relay:
    """One that is measured.

    Attributes:
        headers: what its callers ask with.
        pid, port: of the process.
        cost_us: processor time per chunk, of each round, by load.
        idle_bytes, loaded_bytes: memory before the first request, and the most under paced load.
    """

    name: str
    headers: dict[str, str]
    pid: int
    port: int
    cost_us: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    idle_bytes: int = 0
    loaded_bytes: int = 0


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def started(
    command: list[str], port: int, core: int, **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A Python process that listens, pinned to one core."""
    with subprocess.Popen(
        [sys.executable, "-m", *command],
        env=os.environ | environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        os.sched_setaffinity(process.pid, {core})
        try:
            wait_for(port)
            yield process
        finally:
            process.terminate()


def wait_for(port: int) -> None:
    """Return once somebody listens.

    Raises:
        TimeoutError: nobody does.
    """
    ends_at = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < ends_at:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError(f"nobody listens on port {port}")


@contextmanager
def passthrough(upstream_port: int, core: int) -> Iterator[Relay]:
    """The relay that watches nothing."""
    port = free_port()
    command = ["tests.benchmarks.passthrough", str(port), f"http://127.0.0.1:{upstream_port}"]
    with started(command, port, core) as process:
        yield Relay("passthrough", {}, process.pid, port)


@contextmanager
def loopguard(relay: str, upstream_port: int, core: int) -> Iterator[Relay]:
    """`loopguard serve`, asked for a kind of relay."""
    port = free_port()
    with TemporaryDirectory() as folder:
        environment = {
            "LOOPGUARD_SERVER__PORT": str(port),
            "LOOPGUARD_SERVER__ADMIN_PORT": "0",
            "LOOPGUARD_UPSTREAM__BASE_URL": f"http://127.0.0.1:{upstream_port}/v1",
            "LOOPGUARD_LEDGER__URL": f"sqlite:///{folder}/ledger.db",
        }
        with started(["loopguard", "serve"], port, core, **environment) as process:
            yield Relay(f"loopguard {relay}", {"X-Loopguard-Relay": relay}, process.pid, port)


async def measure(relay: Relay, load: str, streams: int, chunks: int) -> None:
    """Put one load on one relay."""
    began_s = cpu_s(relay.pid)
    asking = asyncio.ensure_future(ask(relay.port, relay.headers, load, streams, chunks))
    if load == "paced":
        await asyncio.sleep(0.9 * chunks / CHUNKS_PER_S)
        relay.loaded_bytes = max(relay.loaded_bytes, rss_bytes(relay.pid))
    await asking
    relay.cost_us[load].append((cpu_s(relay.pid) - began_s) / (streams * chunks) * 1e6)


async def run(relays: list[Relay], rounds: int, seconds: int) -> None:
    """Measure all relays in turns."""
    for relay in relays:
        relay.idle_bytes = rss_bytes(relay.pid)
        await ask(relay.port, relay.headers, "bulk", 2, 500)  # what only the first request costs
    for _ in range(rounds):
        for relay in relays:
            await measure(relay, "paced", PACED_STREAMS, seconds * CHUNKS_PER_S)
        for relay in relays:
            await measure(relay, "bulk", BULK_STREAMS, BULK_CHUNKS)


def table(relays: list[Relay], loads: dict[str, str]) -> Iterator[str]:
    """The figures in Markdown, with their ratios to those of the first relay."""
    heads = [f"{said}, us/chunk | x | x at best" for said in loads.values()]
    yield f"| relay | {' | '.join(heads)} | idle, MiB | loaded, MiB |"
    yield "|---" * (3 + 3 * len(loads)) + "|"
    for relay in relays:
        cells = [relay.name]
        for load in loads:
            costs, measures = relay.cost_us[load], relays[0].cost_us[load]
            cells.append(f"{median(costs):.1f}")
            cells.append(f"{median(costs) / median(measures):.2f}")
            cells.append(f"{min(costs) / min(measures):.2f}")
        cells += [f"{size / 2**20:.0f}" for size in (relay.idle_bytes, relay.loaded_bytes)]
        yield "| " + " | ".join(cells) + " |"


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=4, help="length of a paced stream")
    arguments = parser.parse_args()
    own_core, *_, relay_core = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {own_core})
    upstream_port = free_port()
    with (
        started(["tests.benchmarks.upstream", str(upstream_port)], upstream_port, own_core),
        passthrough(upstream_port, relay_core) as plain,
        loopguard("live", upstream_port, relay_core) as live,
        loopguard("hold", upstream_port, relay_core) as held,
    ):
        relays = [plain, live, held]
        uvloop.run(run(relays, arguments.rounds, arguments.seconds))
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}:")
    print(f"medians of {arguments.rounds} rounds and their ratios; at best: of the least costs,")
    print("since what else the machine does only adds to them.")
    loads = {
        "paced": f"{PACED_STREAMS} x {CHUNKS_PER_S}/s for {arguments.seconds} s",
        "bulk": f"{BULK_STREAMS} x {BULK_CHUNKS:,} in bulk",
    }
    print("\n".join(table(relays, loads)))


if __name__ == "__main__":
    main()
