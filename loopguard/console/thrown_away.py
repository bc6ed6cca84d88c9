"""What was thrown away, as the ledger has it: the latest replies, and the figures of a day."""

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, TypeAlias

from loopguard.billing.database import Database
from loopguard.billing.figures import (
    DAY_S,
    Figures,
    billed_loops,
    latest_loops,
    standing,
    summarise,
)
from loopguard.billing.market import Terms, TermsOf

Json: TypeAlias = dict[str, Any]

LISTED_REPLIES = 100
"""What a person reads of a list; the ledger's export has no bound."""

HOURS = 24

_REPLY = (
    "exchange",
    "attempt",
    "at_s",
    "model",
    "profile",
    "rule",
    "channel",
    "words",
    "chars",
    "sentence",
    "sample",
    "state",
    "unpriced_reason",
)


class ThrownAway:
    """Reads the ledger for the console.

    Args:
        database: the ledger's.
        terms_of: tells where a model's replies end and what a token costs, for the estimate.
        wall_clock: seconds since 1970.
    """

    def __init__(
        self,
        database: Database,
        terms_of: TermsOf,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._terms_of = terms_of
        self._wall_clock = wall_clock

    async def latest(self, model: str | None, profile: str | None) -> list[Json]:
        """The latest discarded replies, the newest first.

        Args:
            model: only replies of this model.
            profile: only replies of this profile.

        Raises:
            Exception: of the database's driver, where the database is away.
        """
        entries = await latest_loops(
            self._database, model=model, profile=profile, at_most=LISTED_REPLIES
        )
        return [_reply(entry) for entry in entries]

    async def figures(self) -> Json:
        """The last day by model and by hour, and how the ledger stands.

        Raises:
            Exception: of the database's driver, where the database is away.
        """
        now = datetime.fromtimestamp(self._wall_clock(), UTC)
        since_s = int(now.timestamp()) - DAY_S
        by_model = await summarise(self._database, "model", since_s=since_s)
        by_hour = await summarise(self._database, "hour", since_s=since_s)
        billed = await billed_loops(self._database, since_s=since_s)
        states, oldest_at_s = await standing(self._database)
        hours = [now - timedelta(hours=ago) for ago in range(HOURS, -1, -1)]
        return {
            "models": [
                _model(model, figures, await self._saved(model, *billed.get(model, (0, 0))))
                for model, figures in sorted(
                    by_model.items(), key=lambda line: line[1].loop_abort_chars, reverse=True
                )
            ],
            "hours": [_hour(hour, by_hour.get(f"{hour:%Y-%m-%dT%H}", Figures())) for hour in hours],
            "ledger": states | {"oldest_owed_at_s": oldest_at_s},
        }

    async def _saved(self, model: str, loops: int, tokens: int) -> Json:
        """Estimate what the priced loops of a model would have cost, from their cut to its cap."""
        terms = await self._terms_of(model) if loops else None
        return {
            "cap_tokens": terms and terms.cap_tokens,
            "saved_usd": None if terms is None else float(saved_usd(terms, loops, tokens)),
        }


def saved_usd(terms: Terms, loops: int, tokens: int) -> Decimal:
    """What so many replies would have cost on top of their tokens, had each run to its cap."""
    return max(loops * terms.cap_tokens - tokens, 0) * terms.token_usd


def _model(model: str, figures: Figures, saved: Json) -> Json:
    return {
        "model": model,
        "exchanges": figures.turns,
        "looped_exchanges": figures.looped_turns,
        "loop_aborts": figures.loop_aborts,
        "chars": figures.loop_abort_chars,
        "cost_usd": float(figures.loop_abort_cost_usd),
        "owed": figures.loop_abort_owed,
        "unpriced": figures.loop_abort_unpriced,
        **saved,
    }


def _hour(hour: datetime, figures: Figures) -> Json:
    return {
        "at_s": int(hour.replace(minute=0, second=0, microsecond=0).timestamp()),
        "exchanges": figures.turns,
        "loop_aborts": figures.loop_aborts,
        "chars": figures.loop_abort_chars,
        "cost_usd": float(figures.loop_abort_cost_usd),
    }


def _reply(entry: Mapping[str, Any]) -> Json:
    cost_usd = entry["cost_usd"]
    told = {name: entry[name] for name in _REPLY}
    return told | {"cost_usd": None if cost_usd is None else float(cost_usd)}
