"""The ledger's share of an exchange: the command as it is, beside one whose ledger is told nothing.

    python -m tests.benchmarks.parts.ledger_share [--rounds 5] [--exchanges 2000]

Exchanges are short, 20 chunks in bulk, so that the share is as large as it gets. In every round
both commands get the same exchanges, one after the other. The figures are processor time of the
process, the ledger's thread included.
"""

import argparse
import sys
from contextlib import ExitStack
from statistics import median

import uvloop

from tests.benchmarks.callers import call_spread, ended
from tests.benchmarks.launch import LOAD_CORE, cpu_s, started
from tests.benchmarks.relays import Relay, loopguard
from tests.benchmarks.upstream import Asked
from tests.ports import free_port

CHUNKS = 20
AT_ONCE = 20
MODULES = {"ledger told nothing": "tests.benchmarks.parts.without_ledger", "as it is": "loopguard"}


async def cost_us(relay: Relay, exchanges: int) -> float:
    """Processor time of one exchange."""
    assert relay.pid
    began_s = cpu_s(relay.pid)
    for _ in range(exchanges // AT_ONCE):
        many = [Asked(CHUNKS)] * AT_ONCE
        await ended(await call_spread(relay.port, relay.headers, many, 0))
    return (cpu_s(relay.pid) - began_s) / exchanges * 1e6


async def compare(relays: list[Relay], rounds: int, exchanges: int) -> None:
    """Measure both in turns and print the medians."""
    costs: dict[str, list[float]] = {relay.name: [] for relay in relays}
    for relay in relays:
        await cost_us(relay, AT_ONCE)  # what only the first ones cost
    for _ in range(rounds):
        for relay in relays:
            costs[relay.name].append(await cost_us(relay, exchanges))
    for name, measured in costs.items():
        print(f"{name}: {median(measured):.0f} us of the processor per exchange")
    ratios = sorted(on / off for off, on in zip(*costs.values(), strict=True))
    print(f"ratio {median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})")


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--exchanges", type=int, default=2000)
    asked = parser.parse_args()
    with ExitStack() as running:
        port = free_port()
        upstream = [sys.executable, "-m", "tests.benchmarks.upstream", str(port)]
        running.enter_context(started(upstream, port, [LOAD_CORE]))
        relays = [
            running.enter_context(loopguard(name, port, relay="hold", module=[module]))
            for name, module in MODULES.items()
        ]
        uvloop.run(compare(relays, asked.rounds, asked.exchanges))


if __name__ == "__main__":
    main()
