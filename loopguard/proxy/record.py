"""What is kept of an exchange once it has ended: figures and names, never text.

One record is one log line. Whoever wants to see exchanges as they end (metrics, the demo) reads
records and nothing else.
"""

from dataclasses import dataclass, field
from typing import Any

from loopguard.core.events import Usage
from loopguard.core.retry import (
    Broken,
    Completed,
    Departed,
    Drained,
    Outcome,
    Refused,
    Stalled,
    TimedOut,
    Tripped,
)
from loopguard.proxy.relay import Figures

_OUTCOME_NAMES: dict[type[Outcome], str] = {
    Completed: "completed",
    Tripped: "looped",
    Stalled: "stalled",
    TimedOut: "timed_out",
    Refused: "refused",
    Broken: "broken",
    Departed: "departed",
    Drained: "drained",
}


def outcome_name(outcome: Outcome) -> str:
    """The outcome as metrics and logs say it, one word of a closed set."""
    return _OUTCOME_NAMES[type(outcome)]


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One attempt.

    Attributes:
        attempt: its number, from 1.
        outcome: how it ended.
        words: read of its reply, all channels.
        chars: likewise.
        duration_s: from the request to the end.
        after_s: from the beginning of the exchange to the request.
        first_delta_s: to the first delta that carried something.
        generation: the upstream's id.
        model: as the upstream names it.
        provider: likewise.
        status: of a refusal.
        reason: of a broken attempt.
        unreachable: True where no connection to the upstream came about.
        trip: the sentence of a trip.
        rule: which rule tripped.
        channel: where.
        sample: a piece of what repeated, where the profile allows it.
    """

    attempt: int
    outcome: str
    words: int
    chars: int
    duration_s: float
    after_s: float
    first_delta_s: float | None = None
    generation: str | None = None
    model: str | None = None
    provider: str | None = None
    status: int | None = None
    reason: str | None = None
    unreachable: bool | None = None
    trip: str | None = None
    rule: str | None = None
    channel: str | None = None
    sample: str | None = None


@dataclass(slots=True)
class ExchangeRecord:
    """One exchange, filled while it runs.

    Attributes:
        exchange: its id, new for each.
        run: the run that its caller put it in.
        outcome: what it was answered: the last attempt's outcome, ``looped`` where loops made it
            fail, ``remembered`` where loop memory refused it.
        traceparent: the caller's span, as its header names it; no part of the log.
    """

    exchange: str
    dialect: str
    profile: str
    relay: str
    stream: bool
    model: str | None
    run: str | None = None
    outcome: str = "broken"
    status: int = 200
    attempts: list[AttemptRecord] = field(default_factory=list)
    duration_s: float = 0.0
    own_time_s: float = 0.0
    usage: Usage | None = None
    traceparent: str | None = None

    def figures(self) -> Figures:
        """The figures that the response tells, of the attempts that have ended."""
        loops = [attempt for attempt in self.attempts if attempt.outcome == "looped"]
        return Figures(
            attempts=len(self.attempts),
            loop_aborts=len(loops),
            loop_abort_words=sum(attempt.words for attempt in loops),
            loop_abort_chars=sum(attempt.chars for attempt in loops),
        )

    def fields(self) -> dict[str, Any]:
        """The record as a log line's fields; what is not known, and sums of zero, are left out."""
        told = _known(self)
        told.pop("usage", None)
        told.pop("traceparent", None)
        figures = _known(self.figures())
        told["attempts"] = figures.pop("attempts")
        if self.usage is not None:
            usage = self.usage._asdict()
            told |= {name: value for name, value in usage.items() if value is not None}
        told |= {name: value for name, value in figures.items() if value}
        told["attempt"] = [_known(attempt) for attempt in self.attempts]
        return told


def _known(record: ExchangeRecord | AttemptRecord | Figures) -> dict[str, Any]:
    """What is known of a record, by its fields' names.

    Not by `asdict`: it copies every value, at more than the price of the log line.
    """
    told = ((name, getattr(record, name)) for name in record.__slots__)
    return {name: value for name, value in told if value is not None}
