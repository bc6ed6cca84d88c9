"""A ledger that is running, on a database of each kind."""

import pytest
from prometheus_client import CollectorRegistry

from loopguard.billing.database import Database
from loopguard.billing.ledger import Ledger
from loopguard.metrics import Metrics

LEASE_S = 60.0


class Clock:
    """A clock that a test sets."""

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


class Running:
    """A ledger with its clock and its metrics.

    Attributes:
        ledger: running.
        url: of its database.
        clock: that it reads.
        metrics: that it tells.
    """

    def __init__(self, url: str, *, first_look_s: float | None = 2.0) -> None:
        self.url = url
        self.clock = Clock(1_700_000_000.0)
        self.registry = CollectorRegistry()
        self.metrics = Metrics(self.registry)
        self.ledger = Ledger(
            Database(url),
            self.metrics,
            first_look_s=first_look_s,
            lease_s=LEASE_S,
            clock=self.clock,
        )
        self.ledger.start()

    def metric(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


@pytest.fixture
async def running(ledger_url):
    opened = Running(ledger_url)
    yield opened
    await opened.ledger.close()


@pytest.fixture
async def without_endpoint(ledger_url):
    opened = Running(ledger_url, first_look_s=None)
    yield opened
    await opened.ledger.close()
