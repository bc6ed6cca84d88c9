"""Every owed entry is looked up on its schedule until it is priced or given up."""

import asyncio
from decimal import Decimal
from itertools import count, takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopguard.billing.entries import Claim, Price
from loopguard.billing.figures import read_entries
from loopguard.billing.keys import Keys, fingerprint
from loopguard.billing.look_up import Answer
from loopguard.billing.market import Terms
from loopguard.billing.reconciler import (
    FAULT_WAIT_S,
    HOUSEKEEPING_S,
    JITTER,
    TICK_S,
    LookPolicy,
    Postpone,
    Reconciler,
    decide,
)
from tests.fake_openrouter.generations import record
from tests.ledger_values import abandoned, exchange_row
from tests.unit.billing.conftest import LEASE_S

POLICY = LookPolicy(first_look_s=2.0, longest_wait_s=300.0, give_up_after_s=3600.0, concurrency=4)
KEY = "sk-or-v1-caller"
MARK = fingerprint(KEY)
RECORD = record("gen-1", streamed=True, cancelled=True)
PRICE = Price(Decimal("0.00003452"), 64, 98, cancelled=True)
UNFINISHED = RECORD | {"native_tokens_completion": 0, "cancelled": False}
FOUND = Answer(200, record=RECORD)
EVEN = 0.5
"""The jitter that changes nothing."""


def claim(looks=1, *, seen_unfinished=False):
    return Claim(
        "exchange-1", 1, "gen-1", MARK, "default", "model", "looped", looks, seen_unfinished
    )


def test_schedule():
    """Waits double from the first look to the cap, and add up to the hour."""
    waits = list(takewhile(lambda wait: wait is not None, map(POLICY.wait_s, range(100))))
    assert waits == [2.0 * 2**look for look in range(8)] + [300.0] * 10 + [90.0]
    assert sum(waits) == 3600.0


@given(
    first=st.floats(0.1, 100),
    longest=st.floats(0.1, 1000),
    give_up=st.floats(1, 10_000),
    looks=st.integers(0, 3000),
)
def test_schedule_ends(first, longest, give_up, looks):
    """Whatever the figures, no wait exceeds the cap and the waits never exceed the whole."""
    policy = LookPolicy(first, longest, give_up, 1)
    wait = policy.wait_s(looks)
    assert wait is None or 0 < wait <= min(longest, give_up)


def test_found():
    """A record with a price settles the entry."""
    assert decide(claim(), FOUND, POLICY, EVEN) == PRICE


def test_unfinished_once_more():
    """A record that looks unfinished is read once more, and then believed."""
    answer = Answer(200, record=UNFINISHED)
    assert decide(claim(1), answer, POLICY, EVEN) == Postpone(4.0, seen_unfinished=True)
    settled = decide(claim(2, seen_unfinished=True), answer, POLICY, EVEN)
    assert settled == Price(Decimal("0.00003452"), 64, 0, cancelled=False)


def test_unfinished_at_the_end():
    """At the last look a record that looks unfinished is believed at once."""
    answer = Answer(200, record=UNFINISHED)
    assert isinstance(decide(claim(19), answer, POLICY, EVEN), Price)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Answer(404), "not_found"),
        (Answer(200), "unreadable"),
        (Answer(200, record={"id": "gen-1"}), "unreadable"),
        (Answer(401), "key_refused"),
        (Answer(402), "key_refused"),
        (Answer(403), "key_refused"),
        (Answer(429), "upstream_failed"),
        (Answer(500), "upstream_failed"),
        (Answer(0), "upstream_failed"),
    ],
)
def test_no_price_yet(answer, reason):
    """Without a price an entry is looked up again, and after the last look given up with why."""
    assert decide(claim(1), answer, POLICY, EVEN) == Postpone(4.0, seen_unfinished=False)
    assert decide(claim(18), answer, POLICY, EVEN) == Postpone(90.0, seen_unfinished=False)
    assert decide(claim(19), answer, POLICY, EVEN) == reason


@given(st.floats(0, 1))
def test_jitter(jitter):
    """A wait is at most a quarter longer or shorter than the schedule says."""
    wait_s = decide(claim(5), Answer(404), POLICY, jitter).wait_s
    assert 64 * (1 - JITTER) <= wait_s <= 64 * (1 + JITTER)


def test_retry_after():
    """An upstream that asks to be left alone is, for that long and for the schedule's wait."""
    assert decide(claim(1), Answer(429, 100.0), POLICY, EVEN).wait_s == 100.0
    assert decide(claim(8), Answer(503, 100.0), POLICY, EVEN).wait_s == 300.0
    assert decide(claim(1), Answer(404, 100.0), POLICY, EVEN).wait_s == 4.0


class Upstream:
    """Answers look-ups from a script by generation; the last answer is repeated."""

    def __init__(self, answers=()):
        self.answers = dict(answers)
        self.asked = []
        self.open = 0
        self.most_open = 0
        self.busy = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def look_up(self, generation, key):
        self.asked.append((generation, key))
        self.open += 1
        self.most_open = max(self.open, self.most_open)
        if self.open == POLICY.concurrency:
            self.busy.set()
        await self.may_answer.wait()
        self.open -= 1
        answers = self.answers.get(generation, [FOUND])
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


async def terms_of(model):
    """Every model ends at a thousand tokens of a millionth of a dollar each."""
    return None if model == "unlisted" else Terms(1000, Decimal("0.000001"))


class Looking:
    """A reconciler whose clock moves when all of it sleeps, for as long as the test says."""

    def __init__(self, running, upstream, *, keys=None, retention_s=None):
        self.running = running
        self.clock = running.clock
        self.keys = keys or Keys(KEY)
        self.sleepers = []
        self.order = count()
        self.reached = asyncio.Event()
        self.reconciler = Reconciler(
            running.ledger,
            self.keys,
            upstream and upstream.look_up,
            POLICY,
            running.metrics,
            terms_of=terms_of,
            retention_s=retention_s,
            clock=self.clock,
            sleep=self.sleep,
            jitter=lambda: EVEN,
        )

    async def sleep(self, seconds):
        """Sleep until nothing is left to do at this time, and the clock has come to the waking."""
        while self.reconciler._looks:
            await asyncio.wait(self.reconciler._looks)
        woken = asyncio.get_running_loop().create_future()
        wake_s = self.clock.now_s + max(seconds, self.stride_s)
        self.sleepers.append((wake_s, next(self.order), woken))
        if len(self.sleepers) == 2:  # the one that looks and the one that keeps house
            first = min(self.sleepers)
            if first[0] > self.until_s:
                self.reached.set()
            else:
                self.sleepers.remove(first)
                self.clock.now_s = first[0]
                first[2].set_result(None)
        await woken

    async def run_for(self, seconds, stride_s=0.0):
        """Let it work for so many seconds of its clock, in strides that spare real time."""
        self.stride_s = stride_s
        self.until_s = self.clock.now_s + seconds
        work = asyncio.create_task(self.reconciler.run())
        await self.reached.wait()
        self.clock.now_s = self.until_s
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        self.sleepers.clear()
        self.reached.clear()

    async def entries(self):
        database = self.running.ledger.database
        return {entry["exchange"]: entry async for entry in read_entries(database)}


async def record_entries(running, *exchanges, mark=MARK, **named):
    for exchange in exchanges:
        await running.ledger.record(
            abandoned(exchange, generation=f"gen-{exchange}", fingerprint=mark, **named)
        )


async def test_priced_after_a_while(running):
    """An entry whose record appears after some 404s is priced then, and looked up no more."""
    await record_entries(running, "a")
    upstream = Upstream({"gen-a": [Answer(404)] * 3 + [FOUND]})
    looking = Looking(running, upstream)
    await looking.run_for(60)
    assert upstream.asked == [("gen-a", KEY)] * 4
    assert (await looking.entries())["a"]["cost_usd"] == PRICE.cost_usd
    assert running.metric("loopguard_look_up_duration_seconds_count", outcome="not_found") == 3
    assert running.metric("loopguard_look_up_duration_seconds_count", outcome="found") == 1


@pytest.mark.parametrize(
    ("named", "saved_usd"),
    [({}, 0.000902), ({"model": "unlisted"}, None), ({"reason": "departed"}, None)],
    ids=["looped", "of no known terms", "not looped"],
)
async def test_saved(running, named, saved_usd):
    """A priced loop has saved its model's output from the cut to the cap; nothing else has."""
    await running.ledger.record(abandoned(fingerprint=MARK, **named))
    await Looking(running, Upstream({})).run_for(60)
    labels = {"profile": "default", "model": named.get("model", "vendor/model")}
    assert running.metric("loopguard_saved_cost_usd_total", **labels) == saved_usd


async def test_given_up_after_the_hour(running):
    """An entry whose record never appears is given up after its schedule, and not before."""
    await record_entries(running, "a")
    upstream = Upstream({"gen-a": [Answer(404)]})
    looking = Looking(running, upstream)
    await looking.run_for(3590, stride_s=10)
    assert (await looking.entries())["a"]["state"] == "owed"
    await looking.run_for(300, stride_s=10)
    assert (await looking.entries())["a"]["unpriced_reason"] == "not_found"
    assert len(upstream.asked) == 19


async def test_waits_for_its_key(running):
    """An entry whose key is not at hand waits, for days, until the key is seen again."""
    await record_entries(running, "a", mark=fingerprint("sk-guest"))
    upstream = Upstream()
    looking = Looking(running, upstream)
    await looking.run_for(30)
    running.clock.now_s += 3 * 86_400
    await looking.run_for(30)
    assert upstream.asked == []
    looking.keys.remember("sk-guest")
    await looking.run_for(5)
    assert upstream.asked == [("gen-a", "sk-guest")]
    assert (await looking.entries())["a"]["state"] == "priced"


async def test_refused_key_stops(running):
    """A key that is refused is used no more; others go on; its entries are given up in time."""
    await record_entries(running, "a", "b", mark=fingerprint("sk-bad"))
    await record_entries(running, "c")
    upstream = Upstream({"gen-a": [Answer(401)], "gen-b": [Answer(401)]})
    looking = Looking(running, upstream, keys=Keys(KEY))
    looking.keys.remember("sk-bad")
    await looking.run_for(3000, stride_s=30)
    refused = [key for _, key in upstream.asked if key == "sk-bad"]
    assert 1 <= len(refused) <= 2  # both may have been under way
    entries = await looking.entries()
    assert {name: entry["state"] for name, entry in entries.items()} == {
        "a": "owed",
        "b": "owed",
        "c": "priced",
    }
    await looking.run_for(3600 + 2 * HOUSEKEEPING_S - 3000, stride_s=30)
    entries = await looking.entries()
    assert entries["a"]["unpriced_reason"] == entries["b"]["unpriced_reason"] == "key_refused"


async def test_busy_upstream_is_left_alone(running):
    """After a 429 with Retry-After nothing is looked up with that key until it is over."""
    await record_entries(running, "a")
    upstream = Upstream({"gen-a": [Answer(429, 50.0), FOUND]})
    looking = Looking(running, upstream)
    await looking.run_for(5)
    await record_entries(running, "b")
    await looking.run_for(46)
    assert len(upstream.asked) == 1
    await looking.run_for(10)
    assert {entry["state"] for entry in (await looking.entries()).values()} == {"priced"}


async def test_concurrency_is_bounded(running):
    """No more look-ups are open at once than the operator allows, and none waits for a batch."""
    await record_entries(running, *(f"{number}" for number in range(20)))
    running.clock.now_s += 2
    upstream = Upstream()
    upstream.may_answer.clear()
    looking = Looking(running, upstream)
    working = asyncio.create_task(looking.run_for(2))
    await upstream.busy.wait()
    for _ in range(10):
        await looking.entries()  # time in which another claim would have come through
    assert upstream.open == POLICY.concurrency
    upstream.may_answer.set()
    await working
    assert upstream.most_open == POLICY.concurrency
    assert len(upstream.asked) == 20


async def test_a_defect_costs_one_look(running, caplog):
    """A look-up that fails in an unforeseen way leaves its entry owed until the lease ends."""
    await record_entries(running, "a", "b")
    upstream = Upstream({"gen-a": [ZeroDivisionError("secret"), FOUND]})
    looking = Looking(running, upstream)
    await looking.run_for(10)
    entries = await looking.entries()
    assert (entries["a"]["state"], entries["b"]["state"]) == ("owed", "priced")
    await looking.run_for(LEASE_S)
    assert (await looking.entries())["a"]["state"] == "priced"
    (report,) = [line for line in caplog.records if "reconciler" in line.getMessage()]
    assert report.exc_info[0] is ZeroDivisionError
    assert "secret" not in report.getMessage()


async def test_goes_on_after_the_database_failed(running, monkeypatch):
    """A database that fails stops the looking for a while, not for good."""
    await record_entries(running, "a")
    looking = Looking(running, Upstream())
    claims = running.ledger.claim
    failures = [OSError("away")]

    async def claim_or_fail(*arguments):
        if failures:
            raise failures.pop()
        return await claims(*arguments)

    monkeypatch.setattr(running.ledger, "claim", claim_or_fail)
    slept = []
    sleep = looking.sleep

    async def noted(seconds):
        slept.append(seconds)
        await sleep(TICK_S if seconds == FAULT_WAIT_S else seconds)

    looking.reconciler._sleep = noted
    await looking.run_for(10)
    assert FAULT_WAIT_S in slept
    assert (await looking.entries())["a"]["state"] == "priced"


@pytest.mark.parametrize("leased", [False, True])
async def test_clock_that_goes_back(running, leased):
    """Entries, leased or not, are looked up within the minute though the clock went back a day."""
    await record_entries(running, "a")
    if leased:
        running.clock.now_s += 2
        assert await running.ledger.claim([MARK]) is not None
    running.clock.now_s -= 86_400
    looking = Looking(running, Upstream())
    looking.keys.remember(KEY)
    await looking.run_for(HOUSEKEEPING_S + 5)
    assert (await looking.entries())["a"]["state"] == "priced"
    assert running.metric("loopguard_ledger_oldest_owed_seconds") == 0.0


async def test_no_endpoint(running):
    """Where the operator turns look-ups off, what was still owed is given up."""
    await record_entries(running, "a")
    looking = Looking(running, None)
    running.clock.now_s += 10
    await looking.run_for(HOUSEKEEPING_S + 1)
    assert (await looking.entries())["a"]["unpriced_reason"] == "no_endpoint"


async def test_retention(running):
    """What is older than the operator's retention is gone, at the launch and then every hour."""
    await record_entries(running, "a")
    running.ledger.record_exchange(exchange_row("old"))
    assert await running.ledger.flush(5)
    running.clock.now_s += 1000
    await record_entries(running, "b")
    looking = Looking(running, Upstream(), retention_s=900)
    await looking.run_for(2)
    assert list(await looking.entries()) == ["b"]
    await looking.run_for(900, stride_s=30)
    assert list(await looking.entries()) == ["b"]
    await looking.run_for(3600, stride_s=30)
    assert await looking.entries() == {}


async def test_gauges(running):
    """The metrics say how many entries there are in each state, and how old the oldest owed is."""
    await record_entries(running, "a", mark="ffffffffffffffff")
    looking = Looking(running, Upstream())
    running.clock.now_s += 100
    await looking.run_for(2)
    assert running.metric("loopguard_ledger_entries", state="owed") == 1
    assert running.metric("loopguard_ledger_entries", state="priced") == 0
    assert running.metric("loopguard_ledger_oldest_owed_seconds") == 100


async def test_settle_a_run(running):
    """A run is settled at once, whatever its schedule, and other runs are left alone."""
    await record_entries(running, "a", "b", run="run-1")
    await record_entries(running, "c", run="run-2")
    upstream = Upstream()
    looking = Looking(running, upstream)
    looking.reconciler._sleep = asyncio.sleep
    await looking.reconciler.settle("run-1", within_s=10)
    states = {name: entry["state"] for name, entry in (await looking.entries()).items()}
    assert states == {"a": "priced", "b": "priced", "c": "owed"}


async def test_settle_answers_in_time(running):
    """Settling returns in the time that is given; the look-up that is under way still counts."""
    await record_entries(running, "a", run="run-1")
    upstream = Upstream()
    upstream.may_answer.clear()
    looking = Looking(running, upstream)
    looking.reconciler._sleep = asyncio.sleep
    await looking.reconciler.settle("run-1", within_s=0.2)
    assert (await looking.entries())["a"]["state"] == "owed"
    upstream.may_answer.set()
    await asyncio.gather(*looking.reconciler._looks)
    assert (await looking.entries())["a"]["state"] == "priced"


async def test_settle_does_not_wait_for_missing_keys(running):
    """What no key at hand can look up is not waited for."""
    await record_entries(running, "a", mark="ffffffffffffffff")
    looking = Looking(running, Upstream())
    async with asyncio.timeout(5):
        await looking.reconciler.settle(None, within_s=60)
    assert (await looking.entries())["a"]["state"] == "owed"
