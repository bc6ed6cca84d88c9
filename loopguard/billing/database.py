"""The database under the ledger: SQLite for one instance, PostgreSQL for several.

SQLite lets one connection write at a time, so one connection is all that writing gets, and whoever
writes waits for it here instead of meeting a locked database; reading has connections of its own,
which write-ahead logging keeps out of the writer's way. Other processes on the same file (workers,
the ``ledger`` command) are waited for at the lock, in the driver's thread.

The schema has a version, which is the number of migrations applied; they are SQL files, applied in
order, each once, before the first use of a connection and not only at the launch: a database that
was away at the launch is brought up to date when it comes. There is no way back: a ledger that a
newer loopguard wrote is refused.

No query is cancelled. SQLite's driver runs it in a thread, which goes on all the same; cancelled
twice, SQLAlchemy 2.1 leaves a task behind that never ends, and a process that waits for it. So
whatever is cancelled while it waits for the database leaves a task that ends with the query.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import Connection, Executable, Select, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "postgres": "postgresql+asyncpg",
    "postgresql": "postgresql+asyncpg",
}

LOCK_WAIT_S = 5
"""How long SQLite waits for another process's lock. A batch holds it for milliseconds."""

MADE_S = 0.3
"""By then another process has made the file that both found missing."""

ANSWER_WAIT_S = 10
"""How long PostgreSQL may take to connect or to answer; then it counts as away."""

CONNECTIONS = 5
"""To PostgreSQL, per instance: the writer, the reconciler's look-ups, and a reader or two."""

MIGRATION_LOCK = 0x6C6F6F7067
"""Names the advisory lock under which one replica migrates (the bytes of ``loopg``)."""


_Result = TypeVar("_Result")

Work: TypeAlias = Callable[[AsyncConnection], Awaitable[_Result]]
"""What is done with a connection, inside a transaction."""


class LedgerUrlError(ValueError):
    """The ledger's URL names no database that loopguard can use."""


class LedgerTooNewError(RuntimeError):
    """The ledger was written by a newer loopguard, whose schema this one does not know."""


class Database:
    """Connections to the ledger, its schema brought up to date before the first is used."""

    def __init__(self, url: str) -> None:
        """Open nothing yet.

        Args:
            url: ``sqlite:///PATH`` or ``postgresql://USER:PASSWORD@HOST/NAME``.

        Raises:
            LedgerUrlError: the URL cannot be read, or its driver is not installed.
        """
        self._url = _driver_url(url)
        self.is_sqlite = self._url.get_backend_name() == "sqlite"
        if self.is_sqlite:
            self._writing = _sqlite_engine(self._url, pool_size=1, begin="BEGIN IMMEDIATE")
            self._reading = _sqlite_engine(self._url, pool_size=2, begin="BEGIN")
        else:
            self._writing = self._reading = _postgresql_engine(self._url)
        self._migrating = asyncio.Lock()
        self._migrated = False
        self._doing: set[asyncio.Task[Any]] = set()

    @property
    def file(self) -> Path | None:
        """The file of SQLite; None where the database is a server's."""
        return Path(self._url.database or "") if self.is_sqlite else None

    async def write(self, work: Work[_Result]) -> _Result:
        """Do work in a transaction, which is committed at its end.

        Work that has begun is done to its end, also where who waits for it is cancelled.
        """
        return await self._do(self._write(work))

    async def read(self, query: Executable) -> Sequence[Any]:
        """Fetch all rows of a query."""
        return await self._do(self._read(query))

    async def stream(
        self, query: Select[Any], at_once: int
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Read rows by the names of their columns, so many at once, as they are asked for.

        Whoever is done early closes this.
        """
        await self.migrate()
        async with self._reading.connect() as connection:
            rows = await connection.stream(query.execution_options(yield_per=at_once))
            async for row in rows.mappings():
                yield dict(row)

    async def _do(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        doing = asyncio.create_task(work)
        self._doing.add(doing)
        doing.add_done_callback(self._done)
        return await asyncio.shield(doing)

    def _done(self, doing: asyncio.Task[Any]) -> None:
        self._doing.discard(doing)
        if not doing.cancelled():
            doing.exception()  # else it is logged where nobody has waited for it

    async def _write(self, work: Work[_Result]) -> _Result:
        await self._migrate()
        try:
            async with self._writing.begin() as connection:
                return await work(connection)
        except Exception:
            # Perhaps the database that came back is not the one that went away.
            self._migrated = False
            raise

    async def _read(self, query: Executable) -> Sequence[Any]:
        await self._migrate()
        async with self._reading.connect() as connection:
            return (await connection.execute(query)).all()

    async def migrate(self) -> None:
        """Bring the schema up to date, once.

        Raises:
            LedgerTooNewError: the schema is of a later version than this program's.
        """
        await self._do(self._migrate())

    async def _migrate(self) -> None:
        async with self._migrating:
            if self._migrated:
                return
            if self.file is not None:
                self.file.parent.mkdir(parents=True, exist_ok=True)
            try:
                await self._apply()
            except OperationalError:
                if not self.is_sqlite:
                    raise
                # Another process is making the same file, for which SQLite does not wait.
                await asyncio.sleep(MADE_S)
                await self._apply()
            self._migrated = True

    async def _apply(self) -> None:
        async with self._writing.begin() as connection:
            if not self.is_sqlite:
                await connection.execute(
                    text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": MIGRATION_LOCK}
                )
            await connection.run_sync(migrate, migrations())

    async def close(self) -> None:
        """Let what is being done come to its end, and close every connection.

        SQLite is done after ``LOCK_WAIT_S``; what PostgreSQL has not answered by then is given up.
        """
        if self._doing:
            await asyncio.wait(self._doing, timeout=LOCK_WAIT_S)
        await self._writing.dispose()
        await self._reading.dispose()


def migrations() -> list[str]:
    """Return the SQL of every migration, in order; the first makes version 1 of nothing."""
    folder = files("loopguard.billing") / "migrations"
    return [
        file.read_text("utf-8")
        for file in sorted(folder.iterdir(), key=lambda file: file.name)
        if file.name.endswith(".sql")
    ]


def migrate(connection: Connection, scripts: list[str]) -> None:
    """Apply those of the scripts that the database has not seen.

    Raises:
        LedgerTooNewError: it has seen more of them than there are.
    """
    connection.execute(text("CREATE TABLE IF NOT EXISTS ledger_version (version INTEGER NOT NULL)"))
    version = connection.execute(text("SELECT version FROM ledger_version")).scalar()
    if version is None:
        version = 0
        connection.execute(text("INSERT INTO ledger_version VALUES (0)"))
    if version > len(scripts):
        raise LedgerTooNewError(
            f"the ledger is of version {version}, this loopguard knows versions up to "
            f"{len(scripts)}: install the newer one, or give this one a ledger of its own"
        )
    for script in scripts[version:]:
        for statement in script.split(";\n"):
            if statement.strip():
                connection.exec_driver_sql(statement)
    connection.execute(
        text("UPDATE ledger_version SET version = :version"), {"version": len(scripts)}
    )


def _driver_url(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError as fault:
        raise LedgerUrlError("the ledger's URL cannot be read as one") from fault
    driver = DRIVERS.get(parsed.drivername)
    if driver is None:
        raise LedgerUrlError(
            f"the ledger's URL begins with {parsed.drivername}://, "
            f"known are {', '.join(f'{name}://' for name in DRIVERS)}"
        )
    if driver == DRIVERS["sqlite"] and not parsed.database:
        raise LedgerUrlError("the ledger's URL names no file: write sqlite:////folder/ledger.db")
    return parsed.set(drivername=driver)


def _postgresql_engine(url: URL) -> AsyncEngine:
    try:
        return create_async_engine(
            url,
            pool_size=CONNECTIONS,
            max_overflow=0,
            pool_pre_ping=True,
            hide_parameters=True,
            connect_args={"timeout": ANSWER_WAIT_S, "command_timeout": ANSWER_WAIT_S},
        )
    except ModuleNotFoundError as missing:
        raise LedgerUrlError(
            "a ledger in PostgreSQL needs its driver: pip install 'loopguard[postgres]'"
        ) from missing


def _sqlite_engine(url: URL, *, pool_size: int, begin: str) -> AsyncEngine:
    engine = create_async_engine(
        url,
        pool_size=pool_size,
        max_overflow=0,
        hide_parameters=True,
        connect_args={"timeout": LOCK_WAIT_S},
    )

    @event.listens_for(engine.sync_engine, "connect")
    def prepare(connection: Any, entry: ConnectionPoolEntry) -> None:
        del entry
        # sqlite3 would begin transactions by itself, and late; they are begun below instead.
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode = WAL")
        # FULL: a committed entry outlives a power cut too, for a flush to disk per batch.
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def begin_transaction(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine
