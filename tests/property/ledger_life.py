"""One life of a replica: it works through a script and dies at an await of the test's choice.

A life is a process of its own, and its death is SIGKILL: nothing is closed, flushed or rolled back.
An await is counted whenever a task of the life gives control away, whichever task it is, the
writer's and those of the drivers included. So whatever the life can wait for, it can die at.
"""

import asyncio
import os
import signal
import time
from collections.abc import Coroutine, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Literal

from prometheus_client import CollectorRegistry

from loopguard.billing.database import Database
from loopguard.billing.entries import Price
from loopguard.billing.keys import Keys, fingerprint
from loopguard.billing.ledger import Ledger
from loopguard.billing.look_up import Answer
from loopguard.billing.reconciler import LookPolicy, Reconciler
from loopguard.metrics import Metrics
from tests.ledger_values import abandoned, exchange_row

KEY = "sk-caller"
LEASE_S = 60.0
POLICY = LookPolicy(first_look_s=2.0, longest_wait_s=16.0, give_up_after_s=60.0, concurrency=2)

Step = Literal["record", "exchange", "look"] | float
"""Record the next entry or the row of the next exchange, look up what is due, let time pass."""


@dataclass(frozen=True)
class Told:
    """What a life said before it died.

    Attributes:
        what: ``durable`` of an entry or row, ``asked`` and ``answered`` of a look-up, ``priced`` of
            a price that was stored, ``now`` of the clock, ``survived`` at the end of the script.
        entry: the exchange of the entry or row.
        at: monotonic seconds, the same for all processes.
        now_s: on the clock of the life.
    """

    what: str
    entry: str
    at: float
    now_s: float


@dataclass
class Life:
    """What one life is given.

    Attributes:
        url: of the ledger.
        script: its steps.
        name: goes into the names of its exchanges.
        begins_s: its clock at birth, UNIX time.
        dies_at: the await that it does not come back from; None is the end of the script.
    """

    url: str
    script: Sequence[Step]
    name: str
    begins_s: float
    dies_at: int | None = None
    awaits: int = field(default=0, init=False)

    def live(self, told: Connection) -> None:
        """Work through the script and die."""
        self._told = told
        self._now_s = self.begins_s
        with asyncio.Runner(loop_factory=self._loop) as runner:
            runner.run(self._work())
            self._tell("survived", self.name.split("-")[0])
            # Not even the end is proper: connections are open, and the writer is at work.
            os.kill(os.getpid(), signal.SIGKILL)

    def _loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        loop.set_task_factory(self._begin_task)
        return loop

    def _begin_task(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **named: Any
    ) -> "asyncio.Task[Any]":
        async def counted() -> Any:
            return await _Counted(work, self)

        return asyncio.Task(counted(), loop=loop, **named)

    def awaited(self) -> None:
        """Count one await; the last one ends the life."""
        self.awaits += 1
        if self.awaits == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def _tell(self, what: str, entry: str) -> None:
        self._told.send(Told(what, entry, time.monotonic(), self._now_s))

    async def _work(self) -> None:
        ledger = Ledger(
            Database(self.url),
            Metrics(CollectorRegistry()),
            first_look_s=POLICY.first_look_s,
            lease_s=LEASE_S,
            clock=lambda: self._now_s,
        )
        ledger.settle = self._witnessed(ledger.settle)  # type: ignore[method-assign] - to hear of it
        reconciler = Reconciler(
            ledger,
            Keys(KEY),
            self._look_up,
            POLICY,
            ledger._metrics,
            terms_of=_no_terms,
            retention_s=None,
            clock=lambda: self._now_s,
            jitter=lambda: 0.5,
        )
        ledger.start()
        for number, step in enumerate(self.script):
            name = f"{self.name}-{number}"
            match step:
                case "record":
                    if await ledger.record(
                        abandoned(name, generation=name, fingerprint=fingerprint(KEY))
                    ):
                        self._tell("durable", name)
                case "exchange":
                    ledger.record_exchange(exchange_row(name))
                    if await ledger.flush(5):
                        self._tell("durable", name)
                case "look":
                    await reconciler._begin_due_looks()
                    while reconciler._looks:
                        await asyncio.wait(reconciler._looks)
                case seconds:
                    self._now_s += seconds
                    self._tell("now", "")

    async def _look_up(self, generation: str, key: str) -> Answer:
        """Answer by the name: every third is found at once, every third later, the rest never.

        Each answer has a price of its own, so a price that is stored again is not the same.
        """
        self._tell("asked", generation)
        await asyncio.sleep(0)
        age_s = self._now_s - float(generation.split("-")[1])
        kind = sum(generation.encode()) % 3
        found = kind == 0 or (kind == 1 and age_s > 20)
        cost = (time.monotonic_ns() % 10**9) / 10**9
        record = {"total_cost": cost, "tokens_completion": 1, "cancelled": True}
        answer = Answer(200, record=record) if found else Answer(404)
        self._tell("answered", generation)
        return answer

    def _witnessed(self, settle: Any) -> Any:
        async def settle_and_tell(claim: Any, price: Price) -> bool:
            changed: bool = await settle(claim, price)
            if changed:
                self._tell("priced", claim.exchange)
            return changed

        return settle_and_tell


async def _no_terms(_: str) -> None:
    """An upstream that does not say what it sells."""


class _Counted:
    """Awaits some work, and tells the life whenever it waits."""

    def __init__(self, work: Coroutine[Any, Any, Any], life: Life) -> None:
        self._work = work
        self._life = life

    def __await__(self) -> Generator[Any, Any, Any]:
        step = partial(self._work.send, None)
        while True:
            try:
                waits_for = step()
            except StopIteration as end:
                return end.value
            self._life.awaited()
            try:
                yield waits_for
                step = partial(self._work.send, None)
            except BaseException as fault:  # noqa: BLE001 - the work has to see it
                step = partial(self._work.throw, fault)
