"""The ledger's share of an exchange: the command as it is, beside one whose ledger is told nothing.

    python -m tests.benchmarks.ledger_share [--rounds 5] [--exchanges 2000]

Exchanges are short, 20 chunks in bulk, so that the share is as large as it gets. In every round
both commands get the same exchanges, one after the other. The figures are processor time of the
process, the ledger's thread included.
"""

import argparse
from contextlib import ExitStack
from statistics import median
from tempfile import TemporaryDirectory

import uvloop

from tests.benchmarks.accounting import cpu_s
from tests.benchmarks.callers import ask
from tests.benchmarks.relay import free_port, started

CHUNKS = 20
AT_ONCE = 20


async def cost_us(port: int, pid: int, exchanges: int) -> float:
    """Processor time of one exchange."""
    began_s = cpu_s(pid)
    for _ in range(exchanges // AT_ONCE):
        await ask(port, {}, "bulk", AT_ONCE, CHUNKS)
    return (cpu_s(pid) - began_s) / exchanges * 1e6


async def compare(relays: dict[str, tuple[int, int]], rounds: int, exchanges: int) -> None:
    """Measure both in turns and print the medians."""
    costs: dict[str, list[float]] = {name: [] for name in relays}
    for port, pid in relays.values():
        await cost_us(port, pid, AT_ONCE)  # what only the first ones cost
    for _ in range(rounds):
        for name, (port, pid) in relays.items():
            costs[name].append(await cost_us(port, pid, exchanges))
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
    commands = {"ledger told nothing": "tests.benchmarks.without_ledger", "as it is": "loopguard"}
    with ExitStack() as stack:
        upstream_port = free_port()
        upstream = ["tests.benchmarks.upstream", str(upstream_port)]
        stack.enter_context(started(upstream, upstream_port, 1))
        relays = {}
        for name, module in commands.items():
            port, folder = free_port(), stack.enter_context(TemporaryDirectory())
            environment = {
                "LOOPGUARD_SERVER__PORT": str(port),
                "LOOPGUARD_SERVER__ADMIN_PORT": "0",
                "LOOPGUARD_UPSTREAM__BASE_URL": f"http://127.0.0.1:{upstream_port}/v1",
                "LOOPGUARD_LEDGER__URL": f"sqlite:///{folder}/ledger.db",
            }
            process = stack.enter_context(started([module, "serve"], port, 0, **environment))
            relays[name] = (port, process.pid)
        uvloop.run(compare(relays, asked.rounds, asked.exchanges))


if __name__ == "__main__":
    main()
