"""Ask for the price of every owed entry until it is known or not worth asking any longer.

The upstream writes a generation's record seconds after the generation has ended, later when it was
cut off, and has been seen to take most of an hour. So an entry is looked up soon, then ever more
rarely, and given up after the last look of that schedule. The schedule is counted in looks and not
on the clock: the hours in which a process did not run, or an entry waited for its key, are not held
against the entry, and each is looked up at least once.

``decide`` says what an answer means for an entry; the ``Reconciler`` asks and acts. A key that the
upstream refuses is not used again by this process; entries that need it are given up when their
schedule's time has passed on the clock, since nothing will look them up any more. A clock that goes
back leaves looks far ahead of it; they are brought nearer with the housekeeping.

Blind spots: every replica finds out by itself that a key is refused or wants to be left alone. A
record that is wrong but looks finished is believed. An upstream that reuses ids is believed too. A
clock that is years ahead for a moment has all the rows pruned; one that goes back while a key is
left alone has it left alone for as much longer.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import perf_counter
from typing import TypeAlias

from loopguard.billing.entries import Claim, Price, UnpricedReason
from loopguard.billing.figures import owed, standing
from loopguard.billing.keys import Keys
from loopguard.billing.ledger import Ledger
from loopguard.billing.look_up import Answer, LookUp
from loopguard.billing.market import TermsOf
from loopguard.billing.prices import looks_unfinished, read_price
from loopguard.metrics import Metrics

SETTLE_TICK_S = 0.1
"""How often it is asked while somebody waits for the answer."""

TICK_S = 1.0
"""How often the ledger is asked whether an entry is due. Another replica may have written it, so
there is nobody to say so; the question costs a millisecond."""

FAULT_WAIT_S = 30.0
"""After a failure, of the database as a rule; what was claimed meanwhile is leased for longer."""

HOUSEKEEPING_S = 30.0
"""Between two counts of the ledger for the gauges."""

PRUNE_S = 3_600.0
"""Between two deletions of what is too old."""

JITTER = 0.25
"""A wait is this much longer or shorter than the schedule says, so that entries abandoned together
are not looked up together for an hour."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LookPolicy:
    """When an entry is looked up.

    Attributes:
        first_look_s: age of the entry at its first look; each following wait is twice as long.
        longest_wait_s: cap of the waits.
        give_up_after_s: sum of the waits up to the last look.
        concurrency: look-ups at once.
    """

    first_look_s: float
    longest_wait_s: float
    give_up_after_s: float
    concurrency: int

    def wait_s(self, looks: int) -> float | None:
        """Return the wait after so many looks, None after the last one."""
        waited = 0.0
        for look in range(looks):
            waited += self._full_wait_s(look)
        left = self.give_up_after_s - waited
        return min(self._full_wait_s(looks), left) if left > 0 else None

    @property
    def ahead_s(self) -> float:
        """Seconds within which the next look of every entry is due, with a margin for jitter."""
        return 2 * max(self.first_look_s, self.longest_wait_s)

    def _full_wait_s(self, looks: int) -> float:
        # 2.0**1023 is the largest power; the cap is reached long before.
        return min(self.first_look_s * 2.0 ** min(looks, 1000), self.longest_wait_s)


@dataclass(frozen=True, slots=True)
class Postpone:
    """Look again after a wait in seconds; ``seen_unfinished`` if a record looked unfinished."""

    wait_s: float
    seen_unfinished: bool


Decision: TypeAlias = Price | UnpricedReason | Postpone
"""Settle at this price, give up for this reason, or look again."""


def decide(claim: Claim, answer: Answer, policy: LookPolicy, jitter: float) -> Decision:
    """Say what the endpoint's answer means for the entry that was looked up.

    Args:
        claim: the entry.
        answer: of the endpoint.
        policy: when to look again, and when no more.
        jitter: a random number from 0 to 1.
    """
    wait_s = policy.wait_s(claim.looks)
    price = read_price(answer.record) if answer.record is not None else None
    unfinished = price is not None and looks_unfinished(price)
    if price is not None and (not unfinished or claim.seen_unfinished or wait_s is None):
        return price
    if wait_s is None:
        return _why_unpriced(answer)
    jittered_s = wait_s * (1 - JITTER + 2 * JITTER * jitter)
    return Postpone(max(jittered_s, answer.pause_s), claim.seen_unfinished or unfinished)


def _why_unpriced(answer: Answer) -> UnpricedReason:
    match answer.outcome:
        case "not_found" | "key_refused" as reason:
            return reason
        case "found" | "unreadable":
            return "unreadable"
        case _:
            return "upstream_failed"


class Reconciler:
    """Looks owed entries up: in the background, and at once where somebody waits for a run."""

    def __init__(
        self,
        ledger: Ledger,
        keys: Keys,
        look_up: LookUp | None,
        policy: LookPolicy,
        metrics: Metrics,
        *,
        terms_of: TermsOf,
        retention_s: float | None,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Ask nothing yet.

        Args:
            ledger: whose entries are settled.
            keys: to look them up with.
            look_up: asks the upstream; None where it has no generation endpoint.
            policy: when to look.
            metrics: is told of every look and how the ledger stands.
            terms_of: tells what a model's output is sold for.
            retention_s: age at which rows are deleted; None is never.
            clock: tells the UNIX time in seconds.
            sleep: waits a number of seconds.
            jitter: returns a random number from 0 to 1.
        """
        self._ledger = ledger
        self._keys = keys
        self._look_up = look_up
        self._policy = policy
        self._terms_of = terms_of
        self._metrics = metrics
        self._retention_s = retention_s
        self._clock = clock
        self._sleep = sleep
        self._jitter = jitter
        self._slots = asyncio.Semaphore(policy.concurrency)
        self._looks: set[asyncio.Task[None]] = set()
        self._prune_at_s = 0.0

    async def run(self) -> None:
        """Look up whatever is due and keep the ledger in order, until cancelled."""
        try:
            async with asyncio.TaskGroup() as work:
                work.create_task(self._again_and_again(self._keep_house, HOUSEKEEPING_S))
                work.create_task(self._again_and_again(self._begin_due_looks, TICK_S))
        finally:
            for look in self._looks:
                look.cancel()
            await asyncio.gather(*self._looks, return_exceptions=True)

    async def settle(self, run: str | None, within_s: float) -> None:
        """Look up what is owed, at once and then whenever it is due; return when none is left.

        Args:
            run: only its entries; None is all.
            within_s: return after this time all the same. What is owed then stays owed, as does
                what no key at hand can look up.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._ledger.flush(within_s)
                await self._ledger.hasten(run)
                while await owed(self._ledger.database, run, self._usable_keys()):
                    await self._begin_due_looks(run)
                    await self._sleep(SETTLE_TICK_S)

    async def _begin_due_looks(self, run: str | None = None) -> None:
        """Begin to look up every entry that is due, as slots get free."""
        if self._look_up is None:
            return
        while True:
            await self._slots.acquire()
            claim = None
            try:
                claim = await self._ledger.claim(self._usable_keys(), run)
            finally:
                if claim is None:
                    self._slots.release()
            if claim is None:
                return
            look = asyncio.create_task(self._look(claim, self._look_up))
            self._looks.add(look)
            look.add_done_callback(self._looked)

    def _looked(self, look: asyncio.Task[None]) -> None:
        self._looks.discard(look)
        self._slots.release()
        if not look.cancelled() and (fault := look.exception()):
            _report(fault)

    async def _look(self, claim: Claim, look_up: LookUp) -> None:
        key = self._keys.key_of(claim.fingerprint)
        if key is None:
            return  # forgotten since the claim, whose lease ends by itself
        begun_s = perf_counter()
        answer = await look_up(claim.generation, key)
        self._metrics.looked_up(answer.outcome, perf_counter() - begun_s)
        now_s = self._clock()
        if answer.refuses_key:
            self._keys.refuse(claim.fingerprint)
        if answer.pause_s:
            self._keys.pause(claim.fingerprint, now_s + answer.pause_s)
        match decide(claim, answer, self._policy, self._jitter()):
            case Price() as price:
                if await self._ledger.settle(claim, price) and claim.reason == "looped":
                    await self._count_saved(claim, price)
            case Postpone(wait_s, seen_unfinished):
                await self._ledger.postpone(claim, now_s + wait_s, seen_unfinished=seen_unfinished)
            case reason:
                await self._ledger.give_up(claim, reason)

    async def _count_saved(self, claim: Claim, price: Price) -> None:
        terms = await self._terms_of(claim.model)
        if terms is not None and price.completion_tokens:
            saved_usd = terms.saved_usd(price.completion_tokens)
            self._metrics.loop_cut_short(claim.profile, claim.model, saved_usd)

    async def _keep_house(self) -> None:
        """Give up what nothing will look up, delete what is too old, count what is there."""
        now_s = self._clock()
        if self._look_up is None:
            await self._ledger.give_up_all("no_endpoint", before_s=now_s)
        else:
            await self._ledger.bring_nearer(self._policy.ahead_s)
        if refused := self._keys.refused():
            too_old_s = now_s - self._policy.give_up_after_s
            await self._ledger.give_up_all("key_refused", before_s=too_old_s, fingerprints=refused)
        if self._retention_s is not None and now_s >= self._prune_at_s:
            self._prune_at_s = now_s + PRUNE_S
            await self._ledger.prune(now_s - self._retention_s)
        counts, oldest_at_s = await standing(self._ledger.database)
        oldest_s = 0.0 if oldest_at_s is None else max(0.0, now_s - oldest_at_s)
        self._metrics.ledger_stands(counts.items(), oldest_s)

    async def _again_and_again(self, step: Callable[[], Awaitable[None]], wait_s: float) -> None:
        while True:
            try:
                await step()
            except Exception as fault:  # noqa: BLE001 - a defect must not leave the rest owed
                _report(fault)
                await self._sleep(FAULT_WAIT_S)
            else:
                await self._sleep(wait_s)

    def _usable_keys(self) -> list[str]:
        return self._keys.usable(self._clock())


def _report(fault: BaseException) -> None:
    _log.warning("ledger: the reconciler met a failure and goes on", exc_info=fault)
