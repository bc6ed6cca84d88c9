"""The values of the cold path: what the ledger is told, what it keeps, what it is asked for."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, TypeAlias, get_args

Reason: TypeAlias = Literal["looped", "departed", "stalled", "timed_out", "broken", "drained"]
"""Why a generation was abandoned."""

State: TypeAlias = Literal["owed", "priced", "unpriced"]
"""``owed``: its price is still to be asked for. The other two are final."""

STATES: tuple[State, ...] = get_args(State)

UnpricedReason: TypeAlias = Literal[
    "no_id",  # the upstream had not named the generation when it was abandoned
    "no_key",  # the attempt carried no key, and a look-up needs the key that generated
    "no_endpoint",  # the operator says that this upstream has no generation endpoint
    "not_found",  # the endpoint did not know the generation by the last look
    "unreadable",  # its record could not be read as a price by the last look
    "upstream_failed",  # the endpoint could not be asked, or failed, at the last look
    "key_refused",  # 401, 402 or 403: the endpoint does not serve this key
    "key_missing",  # the key was not seen again before the operator's retention ran out
]
"""Why an entry will never have a price."""


@dataclass(frozen=True, slots=True)
class Abandoned:
    """A generation that was begun at the upstream's expense and not read to its end.

    Attributes:
        exchange: the exchange that asked for it; with ``attempt`` it names the entry for good.
        attempt: numbered from 1.
        generation: the upstream's id of it, None where it was not told in time.
        reason: why it was abandoned.
        rule: the detector's rule that tripped, None for every reason but ``looped``.
        channel: where it tripped, likewise.
        sentence: the trip's, likewise.
        sample: a piece of what repeated, None where the profile does not allow it.
        model: as the upstream named it, else as the caller asked for it.
        provider: as the upstream named it.
        profile: the profile of the exchange.
        run: the run that the caller put the exchange in.
        words: words read before it was abandoned.
        chars: characters read before it was abandoned.
        fingerprint: of the key that it was asked with (see ``keys``), None where there was none.
    """

    exchange: str
    attempt: int
    generation: str | None
    reason: Reason
    rule: str | None
    channel: str | None
    sentence: str | None
    sample: str | None
    model: str
    provider: str | None
    profile: str
    run: str | None
    words: int
    chars: int
    fingerprint: str | None


@dataclass(frozen=True, slots=True)
class ExchangeRow:
    """What one exchange came to.

    Attributes:
        exchange: its id.
        profile: the profile that it was served by.
        model: as the upstream named it, else as the caller asked for it.
        run: the run that the caller put it in.
        outcome: ``completed``, ``departed``, or the name of the error that was answered.
        attempts: upstream requests that it cost.
        loop_aborts: how many of them were discarded because they looped.
        loop_abort_words: words of generated output thrown away with them.
        loop_abort_chars: characters of the same.
        prompt_tokens: of the reply that was kept, from its usage; None where it told none.
        completion_tokens: of the same.
        cost_usd: of the same.
    """

    exchange: str
    profile: str
    model: str
    run: str | None
    outcome: str
    attempts: int
    loop_aborts: int
    loop_abort_words: int
    loop_abort_chars: int
    prompt_tokens: int | None
    completion_tokens: int | None
    cost_usd: Decimal | None


@dataclass(frozen=True, slots=True)
class Claim:
    """An owed entry that this replica alone may look up until the lease ends.

    Attributes:
        exchange: names the entry, with ``attempt``.
        attempt: numbered from 1.
        generation: the id to look up.
        fingerprint: of the key to look it up with.
        profile: for the metrics.
        model: for the metrics.
        reason: for the metrics.
        looks: how often it has been claimed, this claim included.
        seen_unfinished: whether a record was read before that looked unfinished.
    """

    exchange: str
    attempt: int
    generation: str
    fingerprint: str
    profile: str
    model: str
    reason: Reason
    looks: int
    seen_unfinished: bool


@dataclass(frozen=True, slots=True)
class Price:
    """What the upstream's record says of a generation.

    Attributes:
        cost_usd: what it cost, the provider's own bill included where the key was the caller's.
        prompt_tokens: as billed; None where the record does not say.
        completion_tokens: the same.
        cancelled: whether the upstream says that it was cancelled.
    """

    cost_usd: Decimal
    prompt_tokens: int | None
    completion_tokens: int | None
    cancelled: bool | None
