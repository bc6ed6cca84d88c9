"""The durable account of what was generated at the operator's expense and thrown away.

An entry is written when a generation is abandoned, and is ``owed`` until the upstream has told its
price. From then on it is an item of a queue: a replica claims the entry that is due, under a lease
that keeps every other replica away, and either settles it (``priced`` or ``unpriced``, both final)
or postpones it. Three facts make that safe, whoever dies when:

* an entry is named by its exchange and attempt, so writing it twice is writing it once;
* a lease ends by itself, so an entry whose replica died becomes due again;
* settling changes an entry only while it is owed, and tells whether it did, so a price is stored
  once and counted once, even by a replica that comes back after its lease.

Blind spots: replicas compare leases with their own clocks, which have to agree to within a few
seconds; a replica that was paused for longer than its lease may be looking an entry up that another
one has claimed meanwhile (the price is stored once all the same); and a generation whose process
is killed before ``record`` was called was never known here.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import (
    ColumnElement,
    CursorResult,
    Delete,
    Table,
    Update,
    and_,
    delete,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.dml import ReturningUpdate

from loopguard.billing.database import Database
from loopguard.billing.entries import Abandoned, Claim, ExchangeRow, Price, UnpricedReason
from loopguard.billing.tables import entries, exchanges
from loopguard.billing.writer import Row, Writer
from loopguard.metrics import Metrics

FLUSH_S = 5.0
"""How long closing waits for the last rows to be written."""

LONGEST_NAME_CHARS = 256
"""What is kept of a name (of a model, a run, a generation). Callers and upstreams write them; none
that means something is longer, and neither is the sentence or the sample of a trip."""

PRUNED_ROWS = 1_000
"""Deleted in one transaction, so that deleting a year of rows holds nobody up."""


class Ledger:
    """Entries of abandoned generations and rows of exchanges, written behind the callers' backs.

    Attributes:
        database: where they are.
        newest_loop: names the entry of a loop that was written last, ``EXCHANGE/ATTEMPT``; empty
            until there is one.
    """

    def __init__(
        self,
        database: Database,
        metrics: Metrics,
        *,
        first_look_s: float | None,
        lease_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Touch nothing yet.

        Args:
            database: where the rows are kept.
            metrics: is told what was priced, kept and lost.
            first_look_s: age at which an entry is looked up for the first time; None where the
                upstream has no endpoint to look it up at.
            lease_s: for which a claimed entry is its claimant's. It has to be longer than a look-up
                and its settling, by more than the clocks of replicas differ; the entries of a
                replica that died wait this long for another one.
            clock: tells the UNIX time in seconds.
        """
        self.database = database
        self.newest_loop = ""
        self._metrics = metrics
        self._first_look_s = first_look_s
        self._lease_s = lease_s
        self._clock = clock
        self._insert = sqlite.insert if database.is_sqlite else postgresql.insert
        self._writer = Writer(self._commit, metrics)
        self._writing: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to write in the background."""
        self._writing = asyncio.create_task(self._writer.run(), name="ledger writer")

    async def close(self) -> bool:
        """Write what is left and stop; tell whether all of it was written."""
        written = await self.flush(FLUSH_S)
        if self._writing is not None:
            self._writing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._writing
        await self.database.close()
        return written

    async def flush(self, within_s: float) -> bool:
        """Wait until all that was recorded so far can be read; tell whether it can."""
        return await self._writer.flush(within_s)

    async def record(self, abandoned: Abandoned) -> bool:
        """Write the entry of a generation that was abandoned; never fail and never wait long.

        Returns:
            Whether it is durable by now; otherwise it stays in memory until it can be.
        """
        unpriced = self._never_priced(abandoned)
        if unpriced:
            self._metrics.generation_unpriced(abandoned.profile, abandoned.model, unpriced)
        now_s = self._clock()
        return await self._writer.put_entry(
            _columns(abandoned)
            | {
                "at_s": int(now_s),
                "state": "unpriced" if unpriced else "owed",
                "unpriced_reason": unpriced,
                "looks": 0,
                "look_at_s": now_s + (self._first_look_s or 0.0),
                "leased_until_s": 0.0,
                "seen_unfinished": False,
            }
        )

    def record_exchange(self, row: ExchangeRow) -> None:
        """Take the row of an exchange that has ended; it is written within a second."""
        if row.cost_usd is not None or row.completion_tokens is not None:
            self._metrics.reply_kept(row.profile, row.model, row.cost_usd, row.completion_tokens)
        self._writer.put_exchange(_columns(row) | {"at_s": int(self._clock())})

    async def claim(self, fingerprints: Collection[str], run: str | None = None) -> Claim | None:
        """Lease the entry that has been due for longest to the caller alone.

        Args:
            fingerprints: of the keys that can be used for a look-up now.
            run: only entries of this run.
        """
        if not fingerprints:
            return None
        now_s = self._clock()
        due = (
            select(entries.c.exchange, entries.c.attempt)
            .where(
                entries.c.state == "owed",
                entries.c.fingerprint.in_(fingerprints),
                entries.c.look_at_s <= now_s,
                entries.c.leased_until_s <= now_s,
                *_of_run(run),
            )
            .order_by(entries.c.look_at_s)
            .limit(1)
            .with_for_update(skip_locked=True)
            .cte("due")
            # Else PostgreSQL may run the subquery, and lock, more than once.
            .prefix_with("MATERIALIZED", dialect="postgresql")
        )
        claimed = (
            update(entries)
            .where(entries.c.exchange == due.c.exchange, entries.c.attempt == due.c.attempt)
            .values(leased_until_s=now_s + self._lease_s, looks=entries.c.looks + 1)
            .returning(*(entries.c[name] for name in Claim.__slots__))
        )
        rows = await self._fetch(claimed)
        return Claim(*rows[0]) if rows else None

    async def postpone(self, claim: Claim, look_at_s: float, *, seen_unfinished: bool) -> None:
        """Give a claimed entry back, to be looked up again at ``look_at_s`` (UNIX time)."""
        await self._change(
            update(entries)
            # A claim that ran out has been counted again by the one that followed.
            .where(_is(claim), entries.c.state == "owed", entries.c.looks == claim.looks)
            .values(look_at_s=look_at_s, leased_until_s=0.0, seen_unfinished=seen_unfinished)
        )

    async def settle(self, claim: Claim, price: Price) -> bool:
        """Store the price of an entry; tell whether it was still owed."""
        changed = await self._settle(claim, {"state": "priced", **asdict(price)})
        if changed:
            self._metrics.generation_priced(
                claim.profile,
                claim.model,
                claim.reason,
                price.cost_usd,
                price.completion_tokens or 0,
            )
        return changed

    async def give_up(self, claim: Claim, reason: UnpricedReason) -> bool:
        """Store that an entry will never be priced; tell whether it was still owed."""
        changed = await self._settle(claim, {"state": "unpriced", "unpriced_reason": reason})
        if changed:
            self._metrics.generation_unpriced(claim.profile, claim.model, reason)
        return changed

    async def give_up_all(
        self,
        reason: UnpricedReason,
        *,
        before_s: float,
        fingerprints: Collection[str] | None = None,
    ) -> None:
        """Store that entries abandoned before a time (UNIX) will never be priced.

        Args:
            reason: the same for all of them.
            before_s: younger ones are left alone.
            fingerprints: only entries with these keys; None is every entry.
        """
        of_keys = () if fingerprints is None else (entries.c.fingerprint.in_(fingerprints),)
        given_up = await self._fetch(
            update(entries)
            .where(entries.c.state == "owed", entries.c.at_s < before_s, *of_keys)
            .values(state="unpriced", unpriced_reason=reason)
            .returning(entries.c.profile, entries.c.model)
        )
        for profile, model in given_up:
            self._metrics.generation_unpriced(profile, model, reason)

    async def hasten(self, run: str | None) -> None:
        """Make owed entries due now: those of one run, or all."""
        await self._change(
            update(entries)
            .where(entries.c.state == "owed", *_of_run(run))
            .values(look_at_s=self._clock())
        )

    async def bring_nearer(self, ahead_s: float) -> None:
        """Make due what was put too far ahead by a clock that has gone back since.

        Args:
            ahead_s: seconds from now within which every look is due.
        """
        now_s = self._clock()
        too_far = or_(
            entries.c.look_at_s > now_s + ahead_s,
            # The clock of the replica that holds the lease may be ahead by a little.
            entries.c.leased_until_s > now_s + 2 * self._lease_s,
        )
        await self._change(
            update(entries)
            .where(entries.c.state == "owed", too_far)
            .values(look_at_s=now_s, leased_until_s=0.0)
        )

    async def prune(self, before_s: float) -> None:
        """Delete what is older than a time (UNIX); an entry still owed is given up first."""
        await self.give_up_all("key_missing", before_s=before_s)
        for table in (entries, exchanges):
            while await self._delete_some(table, before_s) == PRUNED_ROWS:
                pass

    async def _delete_some(self, table: Table, before_s: float) -> int:
        names = tuple_(*table.primary_key.columns)
        old = select(*table.primary_key.columns).where(table.c.at_s < before_s).limit(PRUNED_ROWS)
        return await self._change(delete(table).where(names.in_(old)))

    async def _settle(self, claim: Claim, values: dict[str, Any]) -> bool:
        settled = update(entries).where(_is(claim), entries.c.state == "owed").values(**values)
        return await self._change(settled) == 1

    async def _change(self, statement: Update | Delete) -> int:
        """Change entries or exchanges; how many were changed."""

        async def change(connection: AsyncConnection) -> int:
            changed: CursorResult[Any] = await connection.execute(statement)
            return changed.rowcount

        return await self.database.write(change)

    async def _fetch(self, statement: ReturningUpdate[Any]) -> Sequence[Any]:
        """Change entries; what the statement returns of each that was changed."""

        async def fetch(connection: AsyncConnection) -> Sequence[Any]:
            rows: Sequence[Any] = (await connection.execute(statement)).all()
            return rows

        return await self.database.write(fetch)

    async def _commit(self, new_entries: list[Row], new_exchanges: list[Row]) -> None:
        async def insert(connection: AsyncConnection) -> None:
            for table, rows in ((entries, new_entries), (exchanges, new_exchanges)):
                if rows:
                    await connection.execute(self._insert(table).on_conflict_do_nothing(), rows)

        await self.database.write(insert)
        for row in new_entries:
            if row["reason"] == "looped":
                self.newest_loop = f"{row['exchange']}/{row['attempt']}"

    def _never_priced(self, abandoned: Abandoned) -> UnpricedReason | None:
        if self._first_look_s is None:
            return "no_endpoint"
        if abandoned.generation is None:
            return "no_id"
        return "no_key" if abandoned.fingerprint is None else None


def _is(claim: Claim) -> ColumnElement[bool]:
    return and_(entries.c.exchange == claim.exchange, entries.c.attempt == claim.attempt)


def _of_run(run: str | None) -> tuple[ColumnElement[bool], ...]:
    return () if run is None else (entries.c.run == name(run),)


def _columns(written: Abandoned | ExchangeRow) -> Row:
    told = ((column, getattr(written, column)) for column in written.__slots__)
    return {column: name(value) if isinstance(value, str) else value for column, value in told}


def name(text: str) -> str:
    """Return a name as the ledger keeps it: bounded, and text that both databases take."""
    kept = text[:LONGEST_NAME_CHARS].replace("\0", "")
    return kept.encode("utf-8", "replace").decode("utf-8")
