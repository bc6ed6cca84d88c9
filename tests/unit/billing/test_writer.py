"""The writer shares commits, keeps what it could not write, and makes nobody wait for long."""

import asyncio
import logging
import time

import pytest
from prometheus_client import CollectorRegistry

from loopguard.billing import writer as writer_module
from loopguard.billing.writer import BACKLOG_ROWS, BATCH_ROWS, PATIENCE_S, Writer
from loopguard.metrics import Metrics


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """An entry waits for its database as long as it does where nothing is tested."""
    monkeypatch.setattr(writer_module, "PATIENCE_S", PATIENCE_S)


class Store:
    """A database that a test takes away, holds up and gives back."""

    def __init__(self):
        self.commits = []
        self.fault = None
        self.answers = asyncio.Event()
        self.answers.set()
        self.asked = asyncio.Event()

    async def commit(self, entries, exchanges):
        self.asked.set()
        await self.answers.wait()
        if self.fault is not None:
            raise self.fault
        self.commits.append((list(entries), list(exchanges)))

    @property
    def rows(self):
        return [row["exchange"] for commit in self.commits for rows in commit for row in rows]


class Written:
    """A running writer over such a store."""

    def __init__(self):
        self.registry = CollectorRegistry()
        self.store = Store()
        self.retries = []
        self.retried_often = asyncio.Event()
        self.may_retry = asyncio.Event()
        self.may_retry.set()
        self.writer = Writer(self.store.commit, Metrics(self.registry), sleep=self.sleep)

    async def sleep(self, seconds):
        self.retries.append(seconds)
        if len(self.retries) == 7:
            self.retried_often.set()
        await self.may_retry.wait()
        await asyncio.sleep(0)

    def metric(self, name, **labels):
        return self.registry.get_sample_value(name, labels)


@pytest.fixture
async def written():
    running = Written()
    task = asyncio.create_task(running.writer.run())
    yield running
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def row(number):
    return {"exchange": f"exchange-{number}", "run": None}


async def test_entry_is_durable_when_told(written):
    """An entry is committed by the time that its caller goes on."""
    assert await written.writer.put_entry(row(1))
    assert written.store.rows == ["exchange-1"]


async def test_flush_waits_for_nothing_later(written):
    """Whoever waits for what is taken by now does not wait for what comes meanwhile."""
    written.store.answers.clear()
    written.writer.put_exchange(row(0))
    flushing = asyncio.create_task(written.writer.flush(30))
    await written.store.asked.wait()
    written.writer.put_exchange(row(1))
    written.store.answers.set()
    assert await flushing
    assert written.store.rows == ["exchange-0"]


async def test_commit_is_shared(written):
    """What arrives during a commit shares the next one."""
    written.store.answers.clear()
    first = asyncio.create_task(written.writer.put_entry(row(0)))
    await written.store.asked.wait()
    others = [asyncio.create_task(written.writer.put_entry(row(n))) for n in range(1, 100)]
    await asyncio.sleep(0)
    written.store.answers.set()
    assert all(await asyncio.gather(first, *others))
    assert len(written.store.commits) == 2


async def test_large_backlog_in_batches(written):
    """A backlog is written in order, in batches of bounded size."""
    written.store.answers.clear()
    total = 3 * BATCH_ROWS
    for number in range(total):
        written.writer.put_exchange(row(number))
    written.store.answers.set()
    assert await written.writer.flush(10)
    assert written.store.rows == [f"exchange-{number}" for number in range(total)]
    assert max(len(exchanges) for _, exchanges in written.store.commits) == BATCH_ROWS


async def test_exchange_waits_for_company(written, monkeypatch):
    """The row of an exchange is written without anybody asking for it."""
    monkeypatch.setattr(writer_module, "LINGER_S", 0.01)
    written.writer.put_exchange(row(1))
    await written.store.asked.wait()
    assert await written.writer.flush(1)
    assert written.store.rows == ["exchange-1"]


async def test_database_away(written):
    """What could not be written is tried again, ever more rarely, until it is, in order."""
    written.store.fault = OSError("away")
    assert await written.writer.put_entry(row(1)) is False
    assert await written.writer.put_entry(row(2)) is False
    await written.retried_often.wait()
    written.store.fault = None
    assert await written.writer.flush(1)
    assert written.retries[:7] == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    assert written.store.rows == ["exchange-1", "exchange-2"]
    assert await written.writer.put_entry(row(3))


async def test_away_costs_no_waiting(written):
    """While the database is away an entry's caller goes on at once."""
    written.store.fault = OSError("away")
    await written.writer.put_entry(row(0))
    written.may_retry.clear()
    async with asyncio.timeout(100 * PATIENCE_S):
        for number in range(1, 1000):
            await written.writer.put_entry(row(number))


async def test_slow_costs_one_caller_its_patience(written, monkeypatch):
    """A database that does not answer costs one caller its patience, the next ones nothing."""
    written.store.answers.clear()
    begun_s = time.monotonic()
    assert not await written.writer.put_entry(row(1))
    assert time.monotonic() - begun_s >= PATIENCE_S
    monkeypatch.setattr(writer_module, "PATIENCE_S", 3600)
    async with asyncio.timeout(60):
        assert not await written.writer.put_entry(row(2))
    written.store.answers.set()
    assert await written.writer.flush(1)
    assert written.store.rows == ["exchange-1", "exchange-2"]


async def test_cancelled_caller_leaves_its_entry(written):
    """An entry whose caller was cancelled while it waited is written all the same."""
    written.store.answers.clear()
    caller = asyncio.create_task(written.writer.put_entry(row(1)))
    await written.store.asked.wait()
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    written.store.answers.set()
    assert await written.writer.flush(1)
    assert written.store.rows == ["exchange-1"]


async def test_flush_gives_up(written):
    """Waiting for the last row ends in time, and says that it was not written."""
    written.store.answers.clear()
    written.writer.put_exchange(row(1))
    assert await written.writer.flush(0.01) is False


async def test_memory_is_bounded(written, caplog):
    """A row beyond the memory for rows is dropped, and its loss is logged and counted."""
    written.store.fault = OSError("away")
    await written.writer.put_entry(row("first"))
    written.may_retry.clear()
    for number in range(BACKLOG_ROWS + 3):
        written.writer.put_exchange(row(number))
        await written.writer.put_entry(row(number))
    assert written.metric("loopguard_ledger_backlog_rows") == 2 * BACKLOG_ROWS
    assert written.metric("loopguard_ledger_lost_total", kind="exchange") == 3
    assert written.metric("loopguard_ledger_lost_total", kind="entry") == 4
    lost = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.fields["exchange"] for record in lost][:2] == [
        f"exchange-{BACKLOG_ROWS - 1}",
        f"exchange-{BACKLOG_ROWS}",
    ]


async def test_says_when_it_goes_and_comes(written, caplog):
    """That the database is away, and back, is a warning each, and no more."""
    written.store.fault = OSError("away")
    for number in range(3):
        await written.writer.put_entry(row(number))
    assert written.metric("loopguard_ledger_backlog_rows") == 3
    written.store.fault = None
    assert await written.writer.flush(1)
    assert written.metric("loopguard_ledger_backlog_rows") == 0
    assert [record.getMessage().split(";")[0] for record in caplog.records] == [
        "ledger: the database is away",
        "ledger: the database is back",
    ]
    assert caplog.records[0].fields["why"] == "OSError: away"
