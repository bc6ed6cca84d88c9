"""A database that is full, locked or away costs nobody anything, and gets all of it later."""

import asyncio
import resource
import sqlite3
import time
from contextlib import contextmanager

import pytest

from loopguard.billing import writer
from loopguard.billing.figures import read_entries, summarise
from loopguard.billing.writer import PATIENCE_S
from tests.ledger_values import abandoned, exchange_row
from tests.postgres import binaries, postgres
from tests.unit.billing.conftest import Running


@pytest.fixture
def impatient(monkeypatch):
    """Call it when the database goes away: an entry then waits for it as long as usual."""
    return lambda: monkeypatch.setattr(writer, "PATIENCE_S", PATIENCE_S)


@contextmanager
def full_disk(largest_bytes):
    """No file of this process grows beyond so many bytes, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
async def in_file(tmp_path):
    opened = Running(f"sqlite:///{tmp_path}/state/ledger.db")
    yield opened
    await opened.ledger.close()


async def test_disk_full(in_file, caplog, impatient):
    """On a full disk entries wait in memory, with a warning; with room they are written."""
    assert await in_file.ledger.record(abandoned("before"))
    impatient()
    with full_disk(in_file.ledger.database.file.with_suffix(".db-wal").stat().st_size):
        async with asyncio.timeout(50 * PATIENCE_S):
            for number in range(100):
                assert not await in_file.ledger.record(abandoned(f"during-{number}"))
        assert in_file.metric("loopguard_ledger_backlog_rows") == 100
    await in_file.ledger.record(abandoned("after"))
    assert await in_file.ledger.flush(30)
    assert len([entry async for entry in read_entries(in_file.ledger.database)]) == 102
    went, came = caplog.records
    assert "the database is away" in went.getMessage()
    assert went.fields["why"].startswith("OperationalError: ")
    assert "the database is back" in came.getMessage()


async def test_locked(in_file, monkeypatch, impatient):
    """A lock that another process holds delays one caller by its patience, and the next by less."""
    await in_file.ledger.record(abandoned("before"))
    other = sqlite3.connect(in_file.ledger.database.file, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    impatient()
    begun_s = time.monotonic()
    assert not await in_file.ledger.record(abandoned("during"))
    assert time.monotonic() - begun_s >= PATIENCE_S
    monkeypatch.setattr(writer, "PATIENCE_S", 3600)
    async with asyncio.timeout(60):
        assert not await in_file.ledger.record(abandoned("then"))
    other.execute("COMMIT")
    other.close()
    assert await in_file.ledger.flush(30)
    assert len([entry async for entry in read_entries(in_file.ledger.database)]) == 3


async def test_folder_that_cannot_be_made(in_file, tmp_path, impatient):
    """A state folder that is not there yet, and cannot be made at first, is used once it can."""
    in_the_way = tmp_path / "state"
    in_the_way.write_text("a file where the folder belongs")
    impatient()
    assert not await in_file.ledger.record(abandoned("a"))
    in_the_way.unlink()
    assert await in_file.ledger.flush(30)
    assert len([entry async for entry in read_entries(in_file.ledger.database)]) == 1


@pytest.mark.skipif(binaries() is None, reason="PostgreSQL is not installed")
async def test_server_away_and_back(impatient):
    """While the server is away rows wait in memory; when it is back they are written, once each."""
    with postgres() as server:
        running = Running(server.empty_database())
        assert await running.ledger.record(abandoned("before"))
        impatient()
        server.stop()
        async with asyncio.timeout(50 * PATIENCE_S):
            for number in range(100):
                await running.ledger.record(abandoned(f"during-{number}"))
                running.ledger.record_exchange(exchange_row(f"during-{number}"))
        assert running.metric("loopguard_ledger_backlog_rows") == 200
        await asyncio.to_thread(server.start)
        assert await running.ledger.flush(30)
        (figures,) = (await summarise(running.ledger.database, "run")).values()
        assert (figures.abandoned, figures.turns) == (101, 100)
        await running.ledger.close()
