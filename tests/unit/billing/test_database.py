"""The database is opened by its URL and brought up to date once."""

import asyncio
import sqlite3
import sys

import pytest
from sqlalchemy import inspect, text

from loopguard.billing.database import (
    Database,
    LedgerTooNewError,
    LedgerUrlError,
    migrate,
    migrations,
)
from loopguard.billing.figures import latest_loops
from loopguard.billing.tables import metadata


@pytest.fixture
async def database(ledger_url):
    opened = Database(ledger_url)
    yield opened
    await opened.close()


async def test_tables_are_what_the_migrations_make(database):
    """The migrations make the tables, columns, types and keys that the queries are built of."""

    def compare(connection):
        made = inspect(connection)
        for table in metadata.tables.values():
            for column, there in zip(table.columns, made.get_columns(table.name), strict=True):
                assert (column.name, column.nullable) == (there["name"], there["nullable"])
                stored_as = getattr(column.type, "impl", column.type)
                assert isinstance(stored_as, type(there["type"].as_generic()))
            key = made.get_pk_constraint(table.name)["constrained_columns"]
            assert key == [column.name for column in table.primary_key]

    async with database.read() as connection:
        await connection.run_sync(compare)


async def test_migrates_forward(database):
    """A later version's migrations are applied once, in order, and what was there stays."""
    scripts = [
        *migrations(),
        "CREATE TABLE remarks (remark TEXT);\nINSERT INTO remarks VALUES ('first');\n",
        "INSERT INTO remarks SELECT 'second' FROM remarks;\n",
    ]
    async with database.write() as connection:
        await connection.execute(text("CREATE TABLE witness (seen INTEGER)"))
    for _ in range(2):
        async with database.write() as connection:
            await connection.run_sync(migrate, scripts)
    async with database.read() as connection:
        remarks = (await connection.execute(text("SELECT remark FROM remarks"))).scalars().all()
        version = (await connection.execute(text("SELECT version FROM ledger_version"))).scalar()
        await connection.execute(text("SELECT seen FROM witness"))
    assert sorted(remarks) == ["first", "second"]
    assert version == len(scripts)


async def test_entries_of_the_first_version_stay(database):
    """An entry that was written before trips were kept has none, and is otherwise as it was."""
    async with database._writing.begin() as connection:
        await connection.run_sync(migrate, migrations()[:1])
        await connection.execute(
            text(
                "INSERT INTO entries (exchange, attempt, state, reason, model, profile, at_s,"
                " words, chars, looks, look_at_s, leased_until_s, seen_unfinished)"
                " VALUES ('e', 1, 'owed', 'looped', 'm/x', 'default', 1, 2, 3, 0, 0, 0, false)"
            )
        )
    (entry,) = await latest_loops(database, model=None, profile=None, at_most=2)
    assert (entry["exchange"], entry["words"], entry["chars"]) == ("e", 2, 3)
    assert (entry["channel"], entry["sentence"], entry["sample"]) == (None, None, None)


async def test_refuses_what_a_newer_one_wrote(ledger_url, database):
    """A ledger of a later version is refused, by a sentence that says what to do."""
    async with database.write() as connection:
        await connection.execute(text("UPDATE ledger_version SET version = 99"))
    older = Database(ledger_url)
    with pytest.raises(LedgerTooNewError, match=r"of version 99, .* install the newer one"):
        await older.migrate()
    await older.close()


async def test_replicas_migrate_at_once(ledger_url):
    """Several replicas that start together on an empty database all find it up to date."""
    replicas = [Database(ledger_url) for _ in range(4)]
    await asyncio.gather(*(replica.migrate() for replica in replicas))
    for replica in replicas:
        async with replica.read() as connection:
            versions = await connection.execute(text("SELECT version FROM ledger_version"))
            assert versions.scalars().all() == [len(migrations())]
        await replica.close()


async def test_failed_write_leaves_nothing(database):
    """A block that raises has written nothing."""

    async def fail_half_way():
        async with database.write() as connection:
            await connection.execute(text("UPDATE ledger_version SET version = 99"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_half_way()
    async with database.read() as connection:
        version = await connection.execute(text("SELECT version FROM ledger_version"))
        assert version.scalar() == len(migrations())


async def test_readers_do_not_wait_for_the_writer(database):
    """While a write is under way readers see the state before it."""
    await database.migrate()
    async with database.write() as writing:
        await writing.execute(text("UPDATE ledger_version SET version = 99"))
        async with database.read() as reading:
            version = await reading.execute(text("SELECT version FROM ledger_version"))
            assert version.scalar() == len(migrations())
        await writing.rollback()


async def test_sqlite_is_durable(tmp_path):
    """SQLite logs ahead, flushes at every commit and lives in a folder that is made for it."""
    file = tmp_path / "state" / "ledger.db"
    database = Database(f"sqlite:///{file}")
    async with database.write() as connection:
        synchronous = await connection.execute(text("PRAGMA synchronous"))
        assert synchronous.scalar() == 2
    await database.close()
    with sqlite3.connect(file) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("ledger.db", "cannot be read"),
        ("mysql://host/ledger", "begins with mysql://, known are sqlite://"),
        ("sqlite://", "names no file"),
    ],
)
def test_refuses_url(url, sentence):
    """A URL that names no database for the ledger is refused, without repeating it."""
    with pytest.raises(LedgerUrlError, match=sentence) as refused:
        Database(url)
    assert "ledger.db'" not in str(refused.value)


def test_refuses_without_driver(monkeypatch):
    """Without the driver of PostgreSQL the refusal says what to install."""
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(LedgerUrlError, match=r"loopguard\[postgres\]"):
        Database("postgresql://host/ledger")
