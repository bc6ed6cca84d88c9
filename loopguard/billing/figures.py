"""Read the ledger: the figures of one run, the summary by one column, lists and exports.

What was discarded is counted from the entries and what was kept from the rows of the exchanges; the
two tables never meet in a query, since an exchange has many entries or none. The price of discarded
output is never work cost.

The summary reads every row once, which takes a second for a million entries and as many exchanges,
and costs less than keeping sums up to date with every write. The two tables are read at once, each
in a connection of its own. An index holds what the summary by model needs of the entries.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Collection
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Literal, TypeAlias

from sqlalchemy import BigInteger, ColumnElement, Label, Select, Table, cast, func, select

from loopguard.billing.database import Database
from loopguard.billing.entries import STATES, State
from loopguard.billing.ledger import name
from loopguard.billing.tables import entries, exchanges

By: TypeAlias = Literal["model", "profile", "run", "day", "hour"]
"""What a summary has a line for each of."""

DAY_S = 86_400
HOUR_S = 3_600

NO_ERROR = ("completed", "departed")
"""Outcomes of an exchange that are no error: it was answered, or its caller did not want it."""

FETCHED_ROWS = 1_000
"""Fetched from the database at a time while a list is written."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What one group of exchanges and abandoned generations came to.

    Attributes:
        turns: exchanges.
        errors: exchanges that were answered with an error.
        looped_turns: exchanges of which at least one reply looped.
        loop_aborts: generations that were abandoned because they looped.
        loop_abort_words: words of generated output thrown away with those.
        loop_abort_chars: characters of the same.
        loop_abort_unpriced: how many of those will never have a price.
        loop_abort_owed: how many of those have no price yet.
        loop_abort_cost_usd: the price of those that have one.
        abandoned: generations that were abandoned, for whatever reason.
        abandoned_unpriced: how many of them will never have a price.
        abandoned_owed: how many of them have no price yet.
        abandoned_cost_usd: the price of those that have one.
        work_cost_usd: what the replies cost that were kept.
    """

    turns: int = 0
    errors: int = 0
    looped_turns: int = 0
    loop_aborts: int = 0
    loop_abort_words: int = 0
    loop_abort_chars: int = 0
    loop_abort_unpriced: int = 0
    loop_abort_owed: int = 0
    loop_abort_cost_usd: Decimal = Decimal(0)
    abandoned: int = 0
    abandoned_unpriced: int = 0
    abandoned_owed: int = 0
    abandoned_cost_usd: Decimal = Decimal(0)
    work_cost_usd: Decimal = Decimal(0)

    @property
    def total_cost_usd(self) -> Decimal:
        """What the replies cost that were kept and those that were not."""
        return self.work_cost_usd + self.abandoned_cost_usd

    def __add__(self, other: "Figures") -> "Figures":
        """Return the figures of both groups together."""
        return Figures(
            **{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(Figures)}
        )


async def summarise(
    database: Database, by: By, *, since_s: int | None = None, run: str | None = None
) -> dict[str, Figures]:
    """Return the figures of each model, profile, run or day; ``""`` is what has no run.

    Args:
        database: the ledger's.
        by: what the lines are for; a day is ``YYYY-MM-DD`` and an hour ``YYYY-MM-DDTHH``, in UTC.
        since_s: only what is not older than this UNIX time.
        run: only what belongs to this run.
    """

    def grouped(table: Table, *figures: ColumnElement[Any]) -> Select[Any]:
        query = select(_group(table, by), *figures).group_by("group")
        if since_s is not None:
            query = query.where(table.c.at_s >= since_s)
        return query if run is None else query.where(table.c.run == name(run))

    discarded, kept = await asyncio.gather(
        database.read(grouped(entries, *_DISCARDED)),
        database.read(grouped(exchanges, *_KEPT)),
    )
    lines: dict[str, dict[str, Any]] = defaultdict(dict)
    for columns, rows in ((_DISCARDED, discarded), (_KEPT, kept)):
        names = [column.name for column in columns]
        for group, *sums in rows:
            told = zip(names, sums, strict=True)
            lines[_line_name(group, by)].update(
                {column: value for column, value in told if value is not None}
            )
    return {line: Figures(**sums) for line, sums in sorted(lines.items())}


async def run_figures(database: Database, run: str) -> dict[str, object]:
    """Return the figures of a run by the names that the loop-detection document gives them.

    The loop figures are of generations that looped, as their names say; ``totalCostUsd`` has the
    price of every generation that was abandoned. A run that is not in the ledger is all zero.
    """
    by_model = await summarise(database, "model", run=run)
    whole = sum(by_model.values(), Figures())
    return {
        "run": run,
        "turns": whole.turns,
        "errors": whole.errors,
        **_loop_figures(whole),
        "workCostUsd": float(whole.work_cost_usd),
        "totalCostUsd": float(whole.total_cost_usd),
        "byModel": {model: _loop_figures(figures) for model, figures in by_model.items()},
    }


async def owed(database: Database, run: str | None, fingerprints: Collection[str]) -> int:
    """Count the owed entries that can be looked up.

    Args:
        database: the ledger's.
        run: only entries of this run; None is all.
        fingerprints: of the keys at hand.
    """
    query = (
        select(func.count())
        .select_from(entries)
        .where(entries.c.state == "owed", entries.c.fingerprint.in_(fingerprints))
    )
    if run is not None:
        query = query.where(entries.c.run == name(run))
    ((count,),) = await database.read(query)
    return int(count)


async def standing(database: Database) -> tuple[dict[State, int], int | None]:
    """Count the entries by state, and find the UNIX time of the oldest that is owed."""
    query = select(entries.c.state, func.count(), func.min(entries.c.at_s)).group_by(
        entries.c.state
    )
    found = {
        state: (count, oldest_at_s) for state, count, oldest_at_s in await database.read(query)
    }
    counts = {state: found.get(state, (0, None))[0] for state in STATES}
    return counts, found.get("owed", (0, None))[1]


def read_entries(
    database: Database,
    *,
    state: State | None = None,
    since_s: int | None = None,
    at_most: int | None = None,
) -> AsyncGenerator[dict[str, Any], None]:
    """Read entries, the oldest first, each by the names in ``ENTRY_COLUMNS``.

    Args:
        database: the ledger's.
        state: only entries in this state.
        since_s: only what is not older than this UNIX time.
        at_most: so many rows; None is all.
    """
    query = select(*(entries.c[column] for column in ENTRY_COLUMNS)).order_by(entries.c.at_s)
    if state is not None:
        query = query.where(entries.c.state == state)
    if since_s is not None:
        query = query.where(entries.c.at_s >= since_s)
    return database.stream(query.limit(at_most), FETCHED_ROWS)


async def latest_loops(
    database: Database, *, model: str | None, profile: str | None, at_most: int
) -> list[dict[str, Any]]:
    """Return the entries that looped, the newest first.

    Each is told by the names in ``ENTRY_COLUMNS``, and its ``sample``.

    Args:
        database: the ledger's.
        model: only entries of this model.
        profile: only entries of this profile.
        at_most: so many rows.
    """
    names = (*ENTRY_COLUMNS, "sample")
    query = (
        select(*(entries.c[column] for column in names))
        .where(_looped)
        # Within a second the names of exchanges tell the order.
        .order_by(entries.c.at_s.desc(), entries.c.exchange.desc(), entries.c.attempt.desc())
        .limit(at_most)
    )
    for column, wanted in ((entries.c.model, model), (entries.c.profile, profile)):
        if wanted is not None:
            query = query.where(column == name(wanted))
    return [dict(zip(names, row, strict=True)) for row in await database.read(query)]


async def billed_loops(database: Database, *, since_s: int) -> dict[str, tuple[int, int]]:
    """Count, by model, the looping generations whose price is known, and their completion tokens.

    Args:
        database: the ledger's.
        since_s: only what is not older than this UNIX time.
    """
    query = (
        select(entries.c.model, func.count(), func.sum(entries.c.completion_tokens))
        .where(_looped, entries.c.state == "priced", entries.c.at_s >= since_s)
        .group_by(entries.c.model)
    )
    rows = await database.read(query)
    return {model: (count, int(tokens or 0)) for model, count, tokens in rows}


def read_exchanges(
    database: Database, *, since_s: int | None = None
) -> AsyncGenerator[dict[str, Any], None]:
    """Read the rows of exchanges, the oldest first, each by the names of its columns.

    Args:
        database: the ledger's.
        since_s: only what is not older than this UNIX time.
    """
    query = select(exchanges).order_by(exchanges.c.at_s)
    if since_s is not None:
        query = query.where(exchanges.c.at_s >= since_s)
    return database.stream(query, FETCHED_ROWS)


ENTRY_COLUMNS = (
    "at_s",
    "exchange",
    "attempt",
    "run",
    "profile",
    "model",
    "provider",
    "generation",
    "fingerprint",
    "reason",
    "rule",
    "channel",
    "sentence",
    "words",
    "chars",
    "state",
    "unpriced_reason",
    "cost_usd",
    "prompt_tokens",
    "completion_tokens",
    "cancelled",
)
"""What there is to tell of an entry. The other columns are the queue's, but for the sample: what is
exported travels, and text of a reply should not by the way."""

_looped = entries.c.reason == "looped"
_unpriced = entries.c.state == "unpriced"
_owed = entries.c.state == "owed"

# A sum of whole numbers is a decimal in PostgreSQL, hence the casts.
_DISCARDED: tuple[Label[Any], ...] = (
    func.count().label("abandoned"),
    func.count().filter(_unpriced).label("abandoned_unpriced"),
    func.count().filter(_owed).label("abandoned_owed"),
    func.sum(entries.c.cost_usd).label("abandoned_cost_usd"),
    func.count().filter(_looped).label("loop_aborts"),
    cast(func.sum(entries.c.words).filter(_looped), BigInteger).label("loop_abort_words"),
    cast(func.sum(entries.c.chars).filter(_looped), BigInteger).label("loop_abort_chars"),
    func.count().filter(_looped, _unpriced).label("loop_abort_unpriced"),
    func.count().filter(_looped, _owed).label("loop_abort_owed"),
    func.sum(entries.c.cost_usd).filter(_looped).label("loop_abort_cost_usd"),
)

_KEPT: tuple[Label[Any], ...] = (
    func.count().label("turns"),
    func.count().filter(exchanges.c.outcome.not_in(NO_ERROR)).label("errors"),
    func.count().filter(exchanges.c.loop_aborts > 0).label("looped_turns"),
    func.sum(exchanges.c.cost_usd).label("work_cost_usd"),
)


def _group(table: Table, by: By) -> ColumnElement[Any]:
    match by:
        case "day":
            column = table.c.at_s // DAY_S
        case "hour":
            column = table.c.at_s // HOUR_S
        case _:
            column = table.c[by]
    return column.label("group")


def _line_name(group: str | int | None, by: By) -> str:
    if group is None:
        return ""
    if by == "day":
        return datetime.fromtimestamp(int(group) * DAY_S, UTC).date().isoformat()
    if by == "hour":
        return datetime.fromtimestamp(int(group) * HOUR_S, UTC).isoformat(timespec="hours")[:-6]
    return str(group)


def _loop_figures(figures: Figures) -> dict[str, int]:
    return {
        "loopAborts": figures.loop_aborts,
        "loopAbortWords": figures.loop_abort_words,
        "loopAbortChars": figures.loop_abort_chars,
        "loopAbortUnpriced": figures.loop_abort_unpriced,
        "loopAbortOwed": figures.loop_abort_owed,
    }
