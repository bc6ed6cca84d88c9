"""The figures are plain sums of what was recorded."""

from decimal import Decimal

import pytest

from loopguard.billing.entries import Price
from loopguard.billing.figures import (
    Figures,
    billed_loops,
    latest_loops,
    owed,
    run_figures,
    summarise,
)
from loopguard.billing.ledger import LONGEST_NAME_CHARS
from tests.ledger_values import abandoned, exchange_row

KEY = "0123456789abcdef"
DAY_S = 86_400


async def record_a_run(running):
    """Two exchanges of one run and one of none: each reason once, two of them priced."""
    ledger = running.ledger
    for attempt, reason in enumerate(
        ("looped", "stalled", "timed_out", "broken", "departed", "drained"), start=1
    ):
        await ledger.record(
            abandoned("exchange-1", attempt, reason=reason, words=attempt, chars=10 * attempt)
        )
    await ledger.record(abandoned("exchange-2", 1, model="vendor/other", generation=None))
    await ledger.record(abandoned("exchange-3", 1, run=None, profile="live"))
    running.clock.now_s += 2
    for usd in ("0.5", "0.25"):
        await ledger.settle(
            await ledger.claim([KEY], "run-1"), Price(Decimal(usd), 1, 1, cancelled=True)
        )
    ledger.record_exchange(exchange_row("exchange-1", outcome="departed", cost_usd=None))
    ledger.record_exchange(exchange_row("exchange-2", model="vendor/other", outcome="completed"))
    ledger.record_exchange(exchange_row("exchange-3", run=None, profile="live", outcome="draining"))
    assert await ledger.flush(5)


async def test_run(running):
    """A run's figures have the document's names; the price of discarded output is no work cost."""
    await record_a_run(running)
    nothing = {"loopAborts": 0, "loopAbortWords": 0, "loopAbortChars": 0}
    assert await run_figures(running.ledger.database, "run-1") == {
        "run": "run-1",
        "turns": 2,
        "errors": 0,
        "loopAborts": 2,
        "loopAbortWords": 1 + 3065,
        "loopAbortChars": 10 + 12261,
        "loopAbortUnpriced": 1,
        "loopAbortOwed": 0,
        "workCostUsd": 0.008262,
        "totalCostUsd": 0.758262,
        "byModel": {
            "vendor/model": nothing
            | {
                "loopAborts": 1,
                "loopAbortWords": 1,
                "loopAbortChars": 10,
                "loopAbortUnpriced": 0,
                "loopAbortOwed": 0,
            },
            "vendor/other": {
                "loopAborts": 1,
                "loopAbortWords": 3065,
                "loopAbortChars": 12261,
                "loopAbortUnpriced": 1,
                "loopAbortOwed": 0,
            },
        },
    }


async def test_unknown_run(running):
    """A run that nobody recorded is all zero."""
    figures = await run_figures(running.ledger.database, "run-9")
    assert figures.pop("run") == "run-9"
    assert figures.pop("byModel") == {}
    assert set(figures.values()) == {0}


async def test_long_run(running):
    """A run is found by the name that it was given, however long that is."""
    name = "r" * (LONGEST_NAME_CHARS + 1)
    running.ledger.record_exchange(exchange_row(run=name))
    assert await running.ledger.flush(5)
    assert (await run_figures(running.ledger.database, name))["turns"] == 1


@pytest.mark.parametrize(
    ("by", "lines"),
    [
        ("model", {"vendor/model": (2, 7), "vendor/other": (1, 1)}),
        ("profile", {"default": (2, 7), "live": (1, 1)}),
        ("run", {"": (1, 1), "run-1": (2, 7)}),
        ("day", {"2023-11-14": (3, 8)}),
        ("hour", {"2023-11-14T22": (3, 8)}),
    ],
)
async def test_summary(running, by, lines):
    """A summary has a line for each model, profile, run, day or hour."""
    await record_a_run(running)
    summary = await summarise(running.ledger.database, by)
    assert {line: (figures.turns, figures.abandoned) for line, figures in summary.items()} == lines
    whole = sum(summary.values(), Figures())
    assert whole.errors == 1
    assert whole.loop_aborts == 3
    assert (whole.abandoned_owed, whole.abandoned_unpriced) == (5, 1)
    assert (whole.loop_abort_owed, whole.loop_abort_unpriced) == (1, 1)
    assert (whole.abandoned_cost_usd, whole.loop_abort_cost_usd) == (
        Decimal("0.75"),
        Decimal("0.5"),
    )
    assert whole.total_cost_usd == whole.work_cost_usd + Decimal("0.75")


async def test_summary_since(running):
    """A summary since a time leaves out what is older."""
    await running.ledger.record(abandoned("exchange-1"))
    running.ledger.record_exchange(exchange_row("exchange-1"))
    running.clock.now_s += DAY_S
    await running.ledger.record(abandoned("exchange-2"))
    running.ledger.record_exchange(exchange_row("exchange-2"))
    assert await running.ledger.flush(5)
    both = await summarise(running.ledger.database, "day")
    assert list(both) == ["2023-11-14", "2023-11-15"]
    since = await summarise(running.ledger.database, "day", since_s=int(running.clock.now_s))
    assert since == {"2023-11-15": both["2023-11-15"]}


async def test_exchanges_that_looped_are_counted(running):
    """An exchange counts once, however many of its replies looped."""
    for number, loops in enumerate((0, 1, 3)):
        running.ledger.record_exchange(exchange_row(f"exchange-{number}", loop_aborts=loops))
    assert await running.ledger.flush(5)
    (figures,) = (await summarise(running.ledger.database, "model")).values()
    assert (figures.turns, figures.looped_turns) == (3, 2)


async def test_billed_loops(running):
    """Of the looping generations those with a price are counted by model, with their tokens."""
    for number, (model, reason) in enumerate(
        [("a", "looped"), ("a", "looped"), ("b", "looped"), ("b", "stalled")]
    ):
        await running.ledger.record(abandoned(f"exchange-{number}", model=model, reason=reason))
    running.clock.now_s += 2
    for _ in range(3):
        claim = await running.ledger.claim([KEY], "run-1")
        await running.ledger.settle(claim, Price(Decimal(1), 1, 100, cancelled=True))
    assert await running.ledger.flush(5)
    since_s = int(running.clock.now_s) - 10
    assert await billed_loops(running.ledger.database, since_s=since_s) == {
        "a": (2, 200),
        "b": (1, 100),
    }
    assert await billed_loops(running.ledger.database, since_s=since_s + 100) == {}


async def test_the_latest_loops(running):
    """The entries that looped are told newest first, of a model or a profile where asked."""
    for number, (model, profile, reason) in enumerate(
        [("a", "x", "looped"), ("b", "x", "looped"), ("a", "y", "looped"), ("a", "x", "stalled")]
    ):
        running.clock.now_s += 1
        await running.ledger.record(
            abandoned(f"exchange-{number}", model=model, profile=profile, reason=reason)
        )
    assert await running.ledger.flush(5)

    async def latest(model=None, profile=None, at_most=10):
        rows = await latest_loops(
            running.ledger.database, model=model, profile=profile, at_most=at_most
        )
        return [row["exchange"] for row in rows]

    assert await latest() == ["exchange-2", "exchange-1", "exchange-0"]
    assert await latest(at_most=1) == ["exchange-2"]
    assert await latest(model="a") == ["exchange-2", "exchange-0"]
    assert await latest(model="a", profile="x") == ["exchange-0"]
    assert running.ledger.newest_loop == "exchange-2/1"


async def test_sums_are_exact(running):
    """A thousand prices of a fraction of a cent add up to the last decimal."""
    for number in range(1000):
        running.ledger.record_exchange(
            exchange_row(f"exchange-{number}", cost_usd=Decimal("0.000005791501"))
        )
    assert await running.ledger.flush(5)
    (figures,) = (await summarise(running.ledger.database, "model")).values()
    assert figures.work_cost_usd == Decimal("0.005791501")


async def test_owed(running):
    """What is owed is counted for a run, and for the keys at hand."""
    await running.ledger.record(abandoned("exchange-1"))
    await running.ledger.record(abandoned("exchange-2", run="run-2"))
    await running.ledger.record(abandoned("exchange-3", fingerprint="ffffffffffffffff"))
    database = running.ledger.database
    assert await owed(database, None, [KEY]) == 2
    assert await owed(database, "run-1", [KEY]) == 1
    assert await owed(database, "run-1", [KEY, "ffffffffffffffff"]) == 2
    assert await owed(database, "run-1", []) == 0
