"""What a large ledger costs: inserts from the first to the last, and the summary of all of it.

    python -m tests.benchmarks.parts.ledger [--entries 1000000] [--url postgresql://...]

The ledger is filled through its own commit, in the batches of its writer, with as many rows of
exchanges as entries. After each tenth an entry is recorded as the proxy does it, alone and durable,
a hundred times: that is what the next attempt waits for. Without a URL the ledger is an SQLite file
in a folder of its own. Seconds of the processor are of this process, SQLite's work included; they
say more than the others where the machine is busy.
"""

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import asdict
from decimal import Decimal
from functools import partial
from statistics import median
from typing import Any, get_args

from prometheus_client import CollectorRegistry

from loopguard.billing.database import Database
from loopguard.billing.entries import Price
from loopguard.billing.figures import By, run_figures, standing, summarise
from loopguard.billing.ledger import Ledger
from loopguard.billing.writer import BATCH_ROWS
from loopguard.metrics import Metrics
from tests.ledger_values import abandoned, exchange_row

RECORDED = 100
EXCHANGES_PER_RUN = 20
BEGAN_S = 1_700_000_000
SPACING_S = 30
MODELS, PROFILES = 40, 5


class Filled:
    """A ledger that is being filled.

    Attributes:
        ledger: the ledger.
        rows: entries in it by now, and as many rows of exchanges.
    """

    def __init__(self, url: str) -> None:
        self.rows = 0
        self._random = random.Random(1)
        self.ledger = Ledger(
            Database(url),
            Metrics(CollectorRegistry()),
            first_look_s=2.0,
            lease_s=30.0,
            clock=lambda: BEGAN_S + self.rows * SPACING_S,
        )

    async def fill(self, rows: int) -> None:
        """Add entries and exchanges."""
        for _ in range(rows // BATCH_ROWS):
            entries, exchanges = [], []
            for _ in range(BATCH_ROWS):
                entry, exchange = self._next()
                entries.append(entry)
                exchanges.append(exchange)
            await self.ledger._commit(entries, exchanges)

    def _next(self) -> tuple[dict[str, Any], dict[str, Any]]:
        draw = self._random
        self.rows += 1
        at_s = BEGAN_S + self.rows * SPACING_S
        name = f"{at_s * 1000:012x}{draw.getrandbits(80):020x}"  # as the proxy names exchanges
        where = {
            "model": f"vendor/model-{draw.randrange(MODELS)}",
            "profile": f"profile-{draw.randrange(PROFILES)}",
            "run": f"run-{self.rows // EXCHANGES_PER_RUN}",
        }
        reason = draw.choice(["looped", "looped", "departed"])
        entry = asdict(abandoned(name, reason=reason, **where))
        entry |= {
            "at_s": at_s,
            "state": draw.choices(["priced", "unpriced"], [9, 1])[0],
            "unpriced_reason": None,
            "looks": 3,
            "look_at_s": 0.0,
            "leased_until_s": 0.0,
            "seen_unfinished": False,
            "cost_usd": Decimal(draw.randrange(10**9)).scaleb(-12),
        }
        return entry, asdict(exchange_row(name, **where)) | {"at_s": at_s}


async def timed(work: Callable[[], Coroutine[Any, Any, Any]]) -> tuple[float, float]:
    """Seconds that it takes, and seconds of the processor."""
    began_at, cpu_began_at = time.perf_counter(), time.process_time()
    await work()
    return time.perf_counter() - began_at, time.process_time() - cpu_began_at


async def told(name: str, work: Callable[[], Coroutine[Any, Any, Any]]) -> str:
    """A line about one question."""
    seconds, cpu_seconds = await timed(work)
    return f"{name}: {seconds:.2f} s, {cpu_seconds:.2f} s of the processor"


async def record_ms(filled: Filled) -> float:
    """Median of recording one entry, alone and durable."""
    names = iter(range(RECORDED))
    ledger = filled.ledger
    return 1e3 * median(
        [
            (await timed(lambda: ledger.record(abandoned(f"{filled.rows}-{next(names)}"))))[0]
            for _ in range(RECORDED)
        ]
    )


async def settle_ms(filled: Filled) -> float:
    """Median of claiming one of the entries that were recorded, and settling it."""
    ledger = filled.ledger
    filled.rows += 1  # its clock goes on, and they are due
    price = Price(Decimal("0.00003452"), 64, 98, cancelled=True)

    async def settle() -> None:
        claim = await ledger.claim(["0123456789abcdef"])
        assert claim is not None
        await ledger.settle(claim, price)

    return 1e3 * median([(await timed(settle))[0] for _ in range(RECORDED)])


async def cpu_us() -> float:
    """Processor time of one row of an exchange, from the hot path's call to the disk."""
    with tempfile.TemporaryDirectory() as folder:
        ledger = Filled(f"sqlite:///{folder}/ledger.db").ledger
        ledger.start()
        await ledger.record(abandoned())
        began_s = time.process_time()
        for number in range(20 * BATCH_ROWS):
            ledger.record_exchange(exchange_row(f"{number:032x}"))
        await ledger.flush(60)
        spent_s = time.process_time() - began_s
        await ledger.close()
    return 1e6 * spent_s / (20 * BATCH_ROWS)


async def report(url: str, rows: int) -> AsyncIterator[str]:
    """Fill a ledger and ask it for everything; yields the lines of the report."""
    filled = Filled(url)
    filled.ledger.start()
    yield "| entries | us per entry and exchange | of the processor | record, ms | settle, ms |"
    yield "|---|---|---|---|---|"
    for _ in range(10):
        fill_s, cpu_fill_s = await timed(partial(filled.fill, rows // 10))
        per_row = 1e6 / (rows // 10)
        yield (
            f"| {filled.rows:,} | {fill_s * per_row:.0f} | {cpu_fill_s * per_row:.0f} "
            f"| {await record_ms(filled):.1f} | {await settle_ms(filled):.1f} |"
        )
    database = filled.ledger.database
    for by in get_args(By):
        yield await told(f"summary by {by}", partial(summarise, database, by))
    yield await told("figures of a run", partial(run_figures, database, "run-7"))
    yield await told("gauges", partial(standing, database))
    yield f"processor time of an exchange's row: {await cpu_us():.0f} us"
    await filled.ledger.close()


async def show(url: str, rows: int) -> None:
    """Print the report as it comes."""
    async for line in report(url, rows):
        print(line, flush=True)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--url")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(show(asked.url or f"sqlite:///{folder}/ledger.db", asked.entries))


if __name__ == "__main__":
    main()
