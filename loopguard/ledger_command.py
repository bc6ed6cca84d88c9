"""Show what was discarded and what it cost, or ask for the prices that are still owed.

Reading needs the ledger alone and may go on while loopguard serves. Settling looks up what the
operator's own key can look up: the keys of callers are in the memory of what serves them.
"""

import argparse
import asyncio
import csv
import json
import re
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

from prometheus_client import CollectorRegistry
from sqlalchemy.exc import SQLAlchemyError

from loopguard.app import ledger_url, open_books
from loopguard.billing.database import Database, LedgerTooNewError, LedgerUrlError
from loopguard.billing.entries import STATES
from loopguard.billing.figures import By, read_entries, read_exchanges, standing, summarise
from loopguard.core.text import one_line
from loopguard.metrics import Metrics
from loopguard.settings import ConfigurationError, Settings, load

SETTLE_S = 60.0
"""How long ``settle`` looks prices up unless told otherwise; most prices exist by then."""

LISTED_ROWS = 100
"""What a person reads of a list; the export has no bound."""

SUMMARY = {
    "turns": "turns",
    "errors": "errors",
    "loop_aborts": "loops",
    "loop_abort_words": "loop words",
    "loop_abort_chars": "loop chars",
    "loop_abort_cost_usd": "loop USD",
    "abandoned": "abandoned",
    "abandoned_owed": "owed",
    "abandoned_unpriced": "unpriced",
    "abandoned_cost_usd": "abandoned USD",
    "work_cost_usd": "kept USD",
    "total_cost_usd": "total USD",
}
"""The columns of the summary's table by the names of the figures."""

LISTED = {
    "at": "at",
    "model": "model",
    "run": "run",
    "reason": "reason",
    "words": "words",
    "generation": "generation",
    "fingerprint": "key",
    "state": "state",
    "unpriced_reason": "because",
    "cost_usd": "USD",
}
"""The columns of the list's table; JSON and the export have all of them."""

_days_ago = re.compile(r"([0-9]{1,5})d")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    summary = actions.add_parser("summary", help="which models loop, and what it costs")
    summary.add_argument("--by", choices=get_args(By), default="model")

    entry_list = actions.add_parser("list", help="abandoned generations, the oldest first")
    entry_list.add_argument("--limit", type=int, default=LISTED_ROWS, metavar="ROWS")

    export = actions.add_parser("export", help="every row with every column")
    export.add_argument("--rows", choices=("entries", "exchanges"), default="entries")
    export.add_argument("--format", choices=("csv", "jsonl"), default="csv")

    settle = actions.add_parser("settle", help="look up now what is owed, with the operator's key")
    settle.add_argument("--within-s", type=float, default=SETTLE_S, metavar="SECONDS")

    for action in (summary, entry_list):
        action.add_argument("--json", action="store_true", help="JSON instead of a table")
    for action in (entry_list, export):
        action.add_argument("--state", choices=STATES, help="only entries in this state")
    for action in (summary, entry_list, export):
        action.add_argument(
            "--since", type=since, metavar="WHEN", help="2026-10-02, or 30d for thirty days ago"
        )
    for action in (summary, entry_list, export, settle):
        action.add_argument(
            "--config",
            type=Path,
            metavar="FILE",
            help="the TOML file; the shipped one where absent",
        )


def since(when: str) -> int:
    """Read a day, a time, or a number of days ago, as UNIX time; without a zone it is UTC.

    Raises:
        ValueError: it is none of them.
    """
    if days := _days_ago.fullmatch(when):
        return int((datetime.now(UTC) - timedelta(days=int(days[1]))).timestamp())
    moment = datetime.fromisoformat(when)
    return int(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp())


def run(arguments: argparse.Namespace) -> int:
    """Carry out one action.

    Raises:
        ConfigurationError: the configuration is refused, or names no ledger that can be read.
    """
    actions: dict[str, Callable[[argparse.Namespace, Settings], Coroutine[Any, Any, int]]] = {
        "summary": _summary,
        "list": _list,
        "export": _export,
        "settle": _settle,
    }
    settings = load(arguments.config)
    try:
        return asyncio.run(actions[arguments.action](arguments, settings))
    except BrokenPipeError:  # is not the ledger's
        raise
    except (SQLAlchemyError, OSError) as error:
        print(f"the ledger cannot be used ({type(error).__name__})", file=sys.stderr)  # noqa: T201  a person asked
        return 1


async def _summary(arguments: argparse.Namespace, settings: Settings) -> int:
    async with _read(settings) as database:
        groups = await summarise(database, arguments.by, since_s=arguments.since)
    lines = [
        {arguments.by: group, **asdict(figures), "total_cost_usd": figures.total_cost_usd}
        for group, figures in groups.items()
    ]
    if arguments.by != "day":  # days stand in their order, of all else the dearest comes first
        lines.sort(key=lambda line: line["abandoned_cost_usd"], reverse=True)
    _show(lines, {arguments.by: arguments.by, **SUMMARY}, as_json=arguments.json)
    return 0


async def _list(arguments: argparse.Namespace, settings: Settings) -> int:
    async with _read(settings) as database:
        lines = [
            _told(entry)
            async for entry in read_entries(
                database,
                state=arguments.state,
                since_s=arguments.since,
                at_most=arguments.limit,
            )
        ]
    _show(lines, LISTED, as_json=arguments.json)
    return 0


async def _export(arguments: argparse.Namespace, settings: Settings) -> int:
    async with _read(settings) as database:
        rows = (
            read_entries(database, state=arguments.state, since_s=arguments.since)
            if arguments.rows == "entries"
            else read_exchanges(database, since_s=arguments.since)
        )
        table = csv.writer(sys.stdout)
        header = arguments.format == "csv"
        async with aclosing(rows):  # a reader who leaves ends it in the middle
            async for row in rows:
                told = _told(row)
                if arguments.format == "jsonl":
                    _print_json(told)
                    continue
                if header:
                    table.writerow(told)
                    header = False
                table.writerow(_plain(value) for value in told.values())
    return 0


async def _settle(arguments: argparse.Namespace, settings: Settings) -> int:
    async with open_books(settings, Metrics(CollectorRegistry())) as books:
        await books.reconciler.settle(None, arguments.within_s)
        counts, _ = await standing(books.ledger.database)
    sys.stdout.write(" ".join(f"{state} {count}" for state, count in counts.items()) + "\n")
    return 0


@asynccontextmanager
async def _read(settings: Settings) -> AsyncIterator[Database]:
    """Open the ledger for reading; one that is not there is not made.

    Raises:
        ConfigurationError: there is none, or it cannot be used.
    """
    try:
        database = Database(ledger_url(settings.ledger))
        if database.file is not None and not database.file.exists():
            raise ConfigurationError([f"ledger.url: there is no ledger at {database.file}"])
        await database.migrate()
    except (LedgerUrlError, LedgerTooNewError) as error:
        raise ConfigurationError([f"ledger.url: {error}"]) from None
    try:
        yield database
    finally:
        await database.close()


def _told(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with its time as people and spreadsheets read it."""
    at = datetime.fromtimestamp(row["at_s"], UTC).isoformat().replace("+00:00", "Z")
    return {"at": at, **{column: value for column, value in row.items() if column != "at_s"}}


def _show(lines: Sequence[Mapping[str, Any]], columns: Mapping[str, str], *, as_json: bool) -> None:
    """Print a table with these columns and headings, or every column as JSON."""
    if as_json:
        _print_json(lines)
        return
    table = []
    for column, heading in columns.items():
        cells = [heading, *(_plain(line[column]) for line in lines)]
        width = max(map(len, cells))
        figures = all(isinstance(line[column], int | Decimal | None) for line in lines)
        table.append([cell.rjust(width) if figures else cell.ljust(width) for cell in cells])
    for row in zip(*table, strict=True):
        sys.stdout.write("  ".join(row).rstrip() + "\n")


def _plain(value: object) -> str:
    """A value as text: money with all its decimals, nothing as nothing."""
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case Decimal():
            return f"{value:f}"
        case _:
            return one_line(str(value))


def _print_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, default=float) + "\n")
