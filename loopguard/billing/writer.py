"""Carry rows from memory to the database, many in one transaction, in the background.

One task writes. While one batch is being committed the rows of the next one gather, so the cost of
a commit is shared by everything that happened during the last one (group commit), and no caller
waits for more than two. An entry is committed as soon as the writer is free and its caller is told;
a row of an exchange may wait ``LINGER_S`` for company.

The database may be slow or away; callers must not notice. An entry's caller waits ``PATIENCE_S`` at
the longest, and while the database is known to be away it does not wait at all. What was not
committed stays in memory, in order, and is tried again until it is; so a row may be sent twice (the
answer to a commit can get lost) and the commit has to ignore a row that is there already. Memory is
bounded: a row beyond the bound is dropped, loudly.

Blind spots: rows that are in memory when the process is killed are gone. For an entry that is the
time of one commit while the database answers, and everything since it went away while it does not.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from loopguard.log import fields
from loopguard.metrics import Metrics

Row: TypeAlias = dict[str, object]
"""The columns of a table by their names."""

_Taken: TypeAlias = tuple[Row, asyncio.Future[None]]
"""A row, and what is done when it is committed."""

Commit: TypeAlias = Callable[[list[Row], list[Row]], Awaitable[None]]
"""Writes entries and rows of exchanges in one transaction, or raises and has written none."""

PATIENCE_S = 0.25
"""An entry is written before the next attempt, which waits about a second anyway; this much of it
is what a slow database may cost the first caller that meets it. Later ones wait for nothing."""

LINGER_S = 0.5
"""Nobody waits for the row of an exchange; half a second gathers a batch worth its commit."""

BATCH_ROWS = 500
"""Of each table, in one transaction: some 10 ms of work, beside which a commit costs little."""

BACKLOG_ROWS = 20_000
"""Of each table, in memory: at about 1 kB each 40 MB in all, and hours of a database being away."""

FIRST_RETRY_S = 0.5
LAST_RETRY_S = 10.0
"""Waits between tries at a database that is away double from the first to the last."""

_log = logging.getLogger(__name__)


class Writer:
    """The rows that are not yet in the database, and the task that brings them there."""

    def __init__(
        self,
        commit: Commit,
        metrics: Metrics,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Hold nothing yet.

        Args:
            commit: ignores a row that is there already.
            metrics: is told the length of the backlog and what was lost.
            sleep: waits a number of seconds.
        """
        self._commit = commit
        self._metrics = metrics
        self._sleep = sleep
        self._entries: deque[_Taken] = deque()
        self._exchanges: deque[_Taken] = deque()
        self._wanted = asyncio.Event()  # there is a row
        self._hurried = asyncio.Event()  # somebody waits for one
        self._away = False

    async def put_entry(self, row: Row) -> bool:
        """Take an entry; wait until it is committed, within reason.

        The entry is taken before the first await: a caller that is cancelled while it waits has
        left it all the same.

        Returns:
            Whether it is in the database by now.
        """
        if len(self._entries) >= BACKLOG_ROWS:
            self._lose("entry", row)
            return False
        committed = asyncio.get_running_loop().create_future()
        self._entries.append((row, committed))
        self._announce()
        self._hurried.set()
        if self._away:
            return False
        await asyncio.wait([committed], timeout=PATIENCE_S)
        if not committed.done():
            self._went_away("it has not answered in time")
        return committed.done()

    def put_exchange(self, row: Row) -> None:
        """Take the row of an exchange; it is committed some time soon."""
        if len(self._exchanges) >= BACKLOG_ROWS:
            self._lose("exchange", row)
            return
        self._exchanges.append((row, asyncio.get_running_loop().create_future()))
        self._announce()

    async def flush(self, within_s: float) -> bool:
        """Wait until every row taken so far is in the database; tell whether it is."""
        # Rows are written in their order: all are, once the last of either table is.
        last = [taken[-1][1] for taken in (self._entries, self._exchanges) if taken]
        if not last:
            return True
        self._hurried.set()
        _, unwritten = await asyncio.wait(last, timeout=within_s)
        return not unwritten

    async def run(self) -> None:
        """Write until cancelled."""
        retry_s = FIRST_RETRY_S
        while True:
            await self._wanted.wait()
            await self._gather()
            entries = [self._entries[i] for i in range(min(BATCH_ROWS, len(self._entries)))]
            exchanges = [self._exchanges[i] for i in range(min(BATCH_ROWS, len(self._exchanges)))]
            try:
                await self._commit([row for row, _ in entries], [row for row, _ in exchanges])
            except Exception as fault:  # noqa: BLE001 - of whatever driver's family it is
                self._went_away(f"{type(fault).__name__}: {getattr(fault, 'orig', fault)}")
                await self._sleep(retry_s)
                retry_s = min(2 * retry_s, LAST_RETRY_S)
                continue
            retry_s = FIRST_RETRY_S
            self._written(entries, exchanges)

    async def _gather(self) -> None:
        """Let rows that nobody waits for gather company."""
        if len(self._exchanges) < BATCH_ROWS:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LINGER_S):
                    await self._hurried.wait()
        self._hurried.clear()

    def _announce(self) -> None:
        self._wanted.set()
        self._metrics.ledger_backlog(len(self._entries) + len(self._exchanges))

    def _written(self, entries: Sequence[_Taken], exchanges: Sequence[_Taken]) -> None:
        for taken, batch in ((self._entries, entries), (self._exchanges, exchanges)):
            for _, committed in batch:
                taken.popleft()
                if not committed.done():
                    committed.set_result(None)
        left = len(self._entries) + len(self._exchanges)
        self._metrics.ledger_backlog(left)
        if not left:
            self._wanted.clear()
        elif self._entries:
            self._hurried.set()
        if self._away:
            self._away = False
            _log.warning("ledger: the database is back", extra=fields(rows_left=left))

    def _went_away(self, why: str) -> None:
        if not self._away:
            self._away = True
            _log.warning(
                "ledger: the database is away; rows stay in memory, and are lost with the process",
                extra=fields(why=why, rows_at_most=BACKLOG_ROWS),
            )

    def _lose(self, kind: str, row: Row) -> None:
        self._metrics.ledger_lost(kind)
        _log.error(
            "ledger: a row is lost, because the database is away and the memory for rows is full",
            extra=fields(
                kind=kind,
                exchange=str(row["exchange"]),
                run=str(row["run"]),
                generation=str(row.get("generation")),
            ),
        )
