"""An entry is owed until it is settled, claimed by one at a time, and settled once."""

import asyncio
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loopguard.billing.entries import Price
from loopguard.billing.figures import read_entries, standing, summarise
from loopguard.billing.ledger import LONGEST_NAME_CHARS, PRUNED_ROWS
from tests.ledger_values import abandoned, exchange_row
from tests.unit.billing.conftest import LEASE_S

KEY = "0123456789abcdef"
PRICE = Price(Decimal("0.00003452"), 64, 98, cancelled=True)


async def entries_of(running):
    return [entry async for entry in read_entries(running.ledger.database)]


async def test_entry_has_every_field(running):
    """An entry that was recorded is durable, owed, and says all that is known."""
    assert await running.ledger.record(abandoned())
    assert await entries_of(running) == [
        {
            "at_s": 1_700_000_000,
            "exchange": "exchange-1",
            "attempt": 1,
            "run": "run-1",
            "profile": "default",
            "model": "vendor/model",
            "provider": "DeepInfra",
            "generation": "gen-exchange-1-1",
            "fingerprint": KEY,
            "reason": "looped",
            "rule": "frequency",
            "channel": "content",
            "sentence": "2 words repeated across 3000 consecutive words",
            "words": 3065,
            "chars": 12261,
            "state": "owed",
            "unpriced_reason": None,
            "cost_usd": None,
            "prompt_tokens": None,
            "completion_tokens": None,
            "cancelled": None,
        }
    ]


@pytest.mark.parametrize(
    ("missing", "reason"), [("generation", "no_id"), ("fingerprint", "no_key")]
)
async def test_unpriced_at_once(running, missing, reason):
    """An entry that nothing can look up is unpriced from the start, and counted."""
    await running.ledger.record(abandoned(**{missing: None}))
    (entry,) = await entries_of(running)
    assert (entry["state"], entry["unpriced_reason"]) == ("unpriced", reason)
    labels = {"profile": "default", "model": "vendor/model", "reason": reason}
    assert running.metric("loopguard_unpriced_total", **labels) == 1


async def test_no_endpoint(without_endpoint):
    """Without a generation endpoint an entry is unpriced from the start."""
    await without_endpoint.ledger.record(abandoned())
    (entry,) = await entries_of(without_endpoint)
    assert (entry["state"], entry["unpriced_reason"]) == ("unpriced", "no_endpoint")


async def test_written_twice_is_written_once(running):
    """An entry or a row that is sent again, because an answer got lost, is there once."""
    for _ in range(2):
        await running.ledger.record(abandoned())
        running.ledger.record_exchange(exchange_row())
    assert await running.ledger.flush(5)
    (figures,) = (await summarise(running.ledger.database, "model")).values()
    assert (figures.abandoned, figures.turns) == (1, 1)


async def test_kept_cost(running):
    """What a kept reply cost is counted by profile and model."""
    running.ledger.record_exchange(exchange_row())
    running.ledger.record_exchange(exchange_row("exchange-2", cost_usd=None))
    labels = {"profile": "default", "model": "vendor/model"}
    assert running.metric("loopguard_kept_cost_usd_total", **labels) == 0.008262


async def test_due_after_the_first_wait(running):
    """An entry is claimed when its first wait is over, and not before."""
    await running.ledger.record(abandoned())
    running.clock.now_s += 1.9
    assert await running.ledger.claim([KEY]) is None
    running.clock.now_s += 0.1
    claim = await running.ledger.claim([KEY])
    assert (claim.generation, claim.looks, claim.seen_unfinished) == ("gen-exchange-1-1", 1, False)


async def test_claimed_by_key(running):
    """Only an entry whose key is at hand is claimed."""
    await running.ledger.record(abandoned(fingerprint="ffffffffffffffff"))
    running.clock.now_s += 10
    assert await running.ledger.claim([KEY]) is None
    assert await running.ledger.claim([]) is None
    assert await running.ledger.claim([KEY, "ffffffffffffffff"]) is not None


async def test_claimed_by_run(running):
    """Where a run is named only its entries are claimed."""
    await running.ledger.record(abandoned("exchange-1", run=None))
    await running.ledger.record(abandoned("exchange-2", run="run-2"))
    running.clock.now_s += 10
    assert await running.ledger.claim([KEY], "run-1") is None
    assert (await running.ledger.claim([KEY], "run-2")).exchange == "exchange-2"


async def test_longest_due_first(running):
    """Of several due entries the one that has been due for longest is claimed."""
    for number in (1, 2, 3):
        await running.ledger.record(abandoned(f"exchange-{number}"))
        running.clock.now_s += 1
    running.clock.now_s += 10
    claims = [await running.ledger.claim([KEY]) for _ in range(4)]
    assert [claim and claim.exchange for claim in claims] == [
        "exchange-1",
        "exchange-2",
        "exchange-3",
        None,
    ]


async def test_one_claim_each(running):
    """Claims at the same time never get the same entry."""
    for number in range(20):
        await running.ledger.record(abandoned(f"exchange-{number}"))
    running.clock.now_s += 10
    claims = await asyncio.gather(*(running.ledger.claim([KEY]) for _ in range(30)))
    got = [claim.exchange for claim in claims if claim is not None]
    assert len(got) == len(set(got))
    # PostgreSQL may pass over a row that another claim is locking, so a claim can miss.
    while claim := await running.ledger.claim([KEY]):
        got.append(claim.exchange)
    assert sorted(got) == sorted(f"exchange-{number}" for number in range(20))


async def test_lease_ends(running):
    """An entry whose claimant died is claimed by another one when the lease has ended."""
    await running.ledger.record(abandoned())
    running.clock.now_s += 10
    await running.ledger.claim([KEY])
    running.clock.now_s += LEASE_S - 0.1
    assert await running.ledger.claim([KEY]) is None
    running.clock.now_s += 0.1
    assert (await running.ledger.claim([KEY])).looks == 2


async def test_settled_once(running):
    """A price is stored and counted once, whoever settles it again."""
    await running.ledger.record(abandoned())
    running.clock.now_s += 10
    first = await running.ledger.claim([KEY])
    running.clock.now_s += LEASE_S
    second = await running.ledger.claim([KEY])
    assert await running.ledger.settle(second, PRICE)
    assert not await running.ledger.settle(first, Price(Decimal(7), 1, 1, cancelled=False))
    assert not await running.ledger.give_up(first, "not_found")
    (entry,) = await entries_of(running)
    assert entry["state"] == "priced"
    assert (entry["cost_usd"], entry["cancelled"]) == (PRICE.cost_usd, True)
    assert (entry["prompt_tokens"], entry["completion_tokens"]) == (64, 98)
    labels = {"profile": "default", "model": "vendor/model", "reason": "looped"}
    assert running.metric("loopguard_abandoned_cost_usd_total", **labels) == 0.00003452
    assert running.metric("loopguard_abandoned_tokens_total", **labels) == 98


async def test_given_up_once(running):
    """An entry that was given up says why and stays so."""
    await running.ledger.record(abandoned())
    running.clock.now_s += 10
    claim = await running.ledger.claim([KEY])
    assert await running.ledger.give_up(claim, "not_found")
    assert not await running.ledger.settle(claim, PRICE)
    (entry,) = await entries_of(running)
    assert (entry["state"], entry["unpriced_reason"]) == ("unpriced", "not_found")
    labels = {"profile": "default", "model": "vendor/model", "reason": "not_found"}
    assert running.metric("loopguard_unpriced_total", **labels) == 1


async def test_postponed(running):
    """A postponed entry is claimed again when it is due, and remembers what was seen."""
    await running.ledger.record(abandoned())
    running.clock.now_s += 10
    claim = await running.ledger.claim([KEY])
    await running.ledger.postpone(claim, running.clock.now_s + 30, seen_unfinished=True)
    running.clock.now_s += 29
    assert await running.ledger.claim([KEY]) is None
    running.clock.now_s += 1
    again = await running.ledger.claim([KEY])
    assert (again.looks, again.seen_unfinished) == (2, True)


async def test_late_claimant_postpones_nothing(running):
    """A claimant whose lease has ended cannot end the lease of the one that followed."""
    await running.ledger.record(abandoned())
    running.clock.now_s += 10
    late = await running.ledger.claim([KEY])
    running.clock.now_s += LEASE_S
    await running.ledger.claim([KEY])
    await running.ledger.postpone(late, 0.0, seen_unfinished=False)
    assert await running.ledger.claim([KEY]) is None


async def test_hastened(running):
    """Entries of a run become due at once, those of others do not."""
    await running.ledger.record(abandoned("exchange-1", run="run-1"))
    await running.ledger.record(abandoned("exchange-2", run="run-2"))
    await running.ledger.hasten("run-1")
    assert (await running.ledger.claim([KEY])).exchange == "exchange-1"
    assert await running.ledger.claim([KEY]) is None
    await running.ledger.hasten(None)
    assert (await running.ledger.claim([KEY])).exchange == "exchange-2"


async def test_given_up_together(running):
    """Entries of certain keys that are old enough are given up together, no others."""
    await running.ledger.record(abandoned("old"))
    await running.ledger.record(abandoned("of another key", fingerprint="ffffffffffffffff"))
    running.clock.now_s += 100
    await running.ledger.record(abandoned("young"))
    await running.ledger.give_up_all(
        "key_refused", before_s=running.clock.now_s - 50, fingerprints=[KEY]
    )
    states = {entry["exchange"]: entry["unpriced_reason"] for entry in await entries_of(running)}
    assert states == {"old": "key_refused", "of another key": None, "young": None}


async def test_pruned(running):
    """What is older than the operator's retention is deleted, however much it is."""
    for number in range(PRUNED_ROWS + 5):
        running.ledger.record_exchange(exchange_row(f"exchange-{number}"))
    await running.ledger.record(abandoned("owed"))
    await running.ledger.record(abandoned("unpriced", generation=None))
    running.clock.now_s += 100
    running.ledger.record_exchange(exchange_row("young"))
    await running.ledger.record(abandoned("young"))
    assert await running.ledger.flush(5)
    await running.ledger.prune(running.clock.now_s - 50)
    (figures,) = (await summarise(running.ledger.database, "profile")).values()
    assert (figures.turns, figures.abandoned) == (1, 1)
    labels = {"profile": "default", "model": "vendor/model", "reason": "key_missing"}
    assert running.metric("loopguard_unpriced_total", **labels) == 1


async def test_standing(running):
    """The ledger counts its entries by state and knows the oldest that is owed."""
    assert await standing(running.ledger.database) == (
        {"owed": 0, "priced": 0, "unpriced": 0},
        None,
    )
    await running.ledger.record(abandoned("exchange-1", generation=None))
    running.clock.now_s += 5
    await running.ledger.record(abandoned("exchange-2"))
    running.clock.now_s += 5
    await running.ledger.record(abandoned("exchange-3"))
    assert await standing(running.ledger.database) == (
        {"owed": 2, "priced": 0, "unpriced": 1},
        1_700_000_005,
    )


async def test_outlives_its_process(running):
    """What was recorded is found by a ledger that is opened later."""
    await running.ledger.record(abandoned())
    await running.ledger.close()
    later = type(running)(running.url)
    later.clock.now_s += 10
    assert (await later.ledger.claim([KEY])).exchange == "exchange-1"
    await later.ledger.close()


@given(
    name=st.text(st.characters(exclude_categories=()), max_size=LONGEST_NAME_CHARS + 1),
    size=st.integers(0, 2**62),
)
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_takes_any_name(running, name, size):
    """Whatever callers and upstreams call things, the entry is written and found again."""
    named = {"generation": name, "model": name, "provider": name, "run": name, "rule": name}
    assert await running.ledger.record(
        abandoned(name, size % 2**31, words=size, chars=size, **named)
    )
    assert await running.ledger.record(abandoned("ordinary", size % 2**31))
