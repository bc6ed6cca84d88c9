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


async def execute(database, sql):
    return await database.write(lambda connection: connection.execute(text(sql)))


async def version_of(database):
    ((version,),) = await database.read(text("SELECT version FROM ledger_version"))
    return version


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

    await database.write(lambda connection: connection.run_sync(compare))


async def test_migrates_forward(database):
    """A later version's migrations are applied once, in order, and what was there stays."""
    scripts = [
        *migrations(),
        "CREATE TABLE remarks (remark TEXT);\nINSERT INTO remarks VALUES ('first');\n",
        "INSERT INTO remarks SELECT 'second' FROM remarks;\n",
    ]
    await execute(database, "CREATE TABLE witness (seen INTEGER)")
    for _ in range(2):
        await database.write(lambda connection: connection.run_sync(migrate, scripts))
    remarks = await database.read(text("SELECT remark FROM remarks"))
    assert sorted(remark for (remark,) in remarks) == ["first", "second"]
    assert await database.read(text("SELECT seen FROM witness")) == []
    assert await version_of(database) == len(scripts)


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
    await execute(database, "UPDATE ledger_version SET version = 99")
    older = Database(ledger_url)
    with pytest.raises(LedgerTooNewError, match=r"of version 99, .* install the newer one"):
        await older.migrate()
    await older.close()


async def test_replicas_migrate_at_once(ledger_url):
    """Several replicas that start together on an empty database all find it up to date."""
    replicas = [Database(ledger_url) for _ in range(4)]
    await asyncio.gather(*(replica.migrate() for replica in replicas))
    for replica in replicas:
        assert await version_of(replica) == len(migrations())
        await replica.close()


async def test_failed_write_leaves_nothing(database):
    """Work that raises has written nothing."""

    async def fail_half_way(connection):
        await connection.execute(text("UPDATE ledger_version SET version = 99"))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await database.write(fail_half_way)
    assert await version_of(database) == len(migrations())


async def test_cancelled_queries_come_to_their_end(database):
    """Whoever waits for a query may be cancelled, and twice: no task and no connection is lost."""
    await database.migrate()
    before = asyncio.all_tasks()
    for turns in range(60):
        waiting = [
            asyncio.create_task(version_of(database)),
            asyncio.create_task(execute(database, "UPDATE ledger_version SET version = version")),
        ]
        for _ in range(turns):
            await asyncio.sleep(0)
        for task in waiting * 2:
            task.cancel()
            await asyncio.sleep(0)
        await asyncio.gather(*waiting, return_exceptions=True)
    async with asyncio.timeout(10):
        assert await version_of(database) == len(migrations())
        await execute(database, "UPDATE ledger_version SET version = version")
    await database.close()
    assert asyncio.all_tasks() == before


async def test_work_is_done_though_nobody_waits(database):
    """What was being written when its caller was cancelled is written when the database closes."""
    await database.migrate()
    writing = asyncio.create_task(execute(database, "UPDATE ledger_version SET version = 99"))
    await asyncio.sleep(0)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    await database.close()
    assert await version_of(database) == 99


async def test_readers_do_not_wait_for_the_writer(database):
    """While a write is under way readers see the state before it."""
    await database.migrate()

    async def read_meanwhile(connection):
        await connection.execute(text("UPDATE ledger_version SET version = 99"))
        return await version_of(database)

    assert await database.write(read_meanwhile) == len(migrations())
    assert await version_of(database) == 99


async def test_sqlite_is_durable(tmp_path):
    """SQLite logs ahead, flushes at every commit and lives in a folder that is made for it."""
    file = tmp_path / "state" / "ledger.db"
    database = Database(f"sqlite:///{file}")
    assert (await execute(database, "PRAGMA synchronous")).scalar() == 2
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
