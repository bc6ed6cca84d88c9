"""What an operator sees of the exchanges that run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from loopguard.core.detection.detector import Level, Rule

SHOWN_EXCHANGES = 100
"""More than a person reads. Each costs some 20 us, during which nothing is relayed."""

State: TypeAlias = Literal[
    "asking",  # no delta has come yet
    "streaming",  # deltas leave as they come
    "holding",  # the reply is kept until it is complete
    "suspected",  # a trip may be near
    "waiting",  # to ask again
    "delivering",  # the reply is complete and on its way to the caller
]


@dataclass(frozen=True, slots=True)
class Sight:
    """One exchange that runs, at one moment.

    Attributes:
        exchange: its id.
        model: as the ledger names it; empty where the caller named none.
        run: as the ledger names it; None where the caller named none.
        attempt: the number of the last attempt, from 1.
        elapsed_s: since the request came.
        chars: read of the last attempt's reply, all channels.
        levels: of each rule that has read something of that reply.
    """

    exchange: str
    model: str
    profile: str
    dialect: str
    run: str | None
    attempt: int
    elapsed_s: float
    state: State
    chars: int
    levels: Mapping[Rule, Level]


class Sights(NamedTuple):
    """The exchanges in flight at one moment.

    Attributes:
        in_flight: how many run.
        suspected: how many of them may be near a trip.
        shown: a bounded number of them.
        newest_loop: names the looping reply that the ledger was told of last; empty where there is
            none.
    """

    in_flight: int
    suspected: int
    shown: list[Sight]
    newest_loop: str
