"""What is done after an attempt has ended.

An attempt ends in exactly one `Outcome`. `decide` says what follows, `conclude` what the caller is
told when nothing more is tried. A trip is treated as an HTTP 5xx is, inside the one budget.

Retried are trips, stalls, a broken transport, 408, 429 and 5xx, a 402 that says when, and an error
inside the stream with such a code. Not retried: what the upstream refuses for the request's own
sake, an attempt that used up `call_timeout_s` while it was writing (the next would be paid as
dearly and end the same way), and anything once a byte of the reply has reached the caller.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, assert_never

from loopguard.core.detection.detector import Trip
from loopguard.errors import (
    Draining,
    LoopguardError,
    ModelResponseLoop,
    UpstreamTimeout,
    UpstreamUnusable,
)

_FIRST_SERVER_ERROR = 500
_PAYMENT_REQUIRED = 402
_REQUEST_TIMEOUT = 408
_TOO_MANY_REQUESTS = 429


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The budget of one exchange.

    Attributes:
        max_attempts: upstream requests that one exchange may cost, 1 or more.
        initial_wait_s: upper bound of the wait before the second attempt; doubled each time.
        max_wait_s: cap of every wait, that of an upstream's Retry-After included.
        exchange_timeout_s: seconds for all attempts and waits together.
    """

    max_attempts: int
    initial_wait_s: float
    max_wait_s: float
    exchange_timeout_s: float


@dataclass(frozen=True, slots=True)
class Completed:
    """The reply came to its end."""


@dataclass(frozen=True, slots=True)
class Tripped:
    """The reply became a repetition and was abandoned.

    Attributes:
        trip: what was seen, on the channel where it was seen.
        words: of the whole reply, every channel of it, as far as it was read.
        chars: likewise.
        fingerprint: of its text up to the trip; None where the text says too little to be told
            from that of another loop.
    """

    trip: Trip
    words: int
    chars: int
    fingerprint: bytes | None = None


@dataclass(frozen=True, slots=True)
class Stalled:
    """Nothing that carries something came for ``silent_s`` seconds."""

    silent_s: float


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The attempt, or the exchange, used up its time of ``limit_s`` seconds."""

    limit: Literal["attempt", "exchange"]
    limit_s: float


@dataclass(frozen=True, slots=True)
class Refused:
    """The upstream answered with an error.

    Attributes:
        status: HTTP status, or the code of an error inside the stream.
        body: the answer's bytes, or an error body made of the error inside the stream.
        headers: of the answer, those that the caller may see.
        retry_after_s: what the upstream asks to wait, None where it does not say.
        in_stream: whether the error came inside a stream.
    """

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()
    retry_after_s: float | None = None
    in_stream: bool = False

    @property
    def retryable(self) -> bool:
        """Whether the same request may be served a moment later.

        A 402 that says when is OpenRouter's bound of what is in flight, where a generation that
        was just abandoned still counts (openrouter.md 2.1 and 3).
        """
        return (
            self.status >= _FIRST_SERVER_ERROR
            or self.status in (_REQUEST_TIMEOUT, _TOO_MANY_REQUESTS)
            or (self.status == _PAYMENT_REQUIRED and self.retry_after_s is not None)
        )


@dataclass(frozen=True, slots=True)
class Broken:
    """The transport failed, or what came is not of the dialect.

    Attributes:
        reason: what happened, in words that hold nothing of the reply.
        retryable: False where the next attempt would break in the same way.
    """

    reason: str
    retryable: bool = True


@dataclass(frozen=True, slots=True)
class Departed:
    """The caller left."""


@dataclass(frozen=True, slots=True)
class Drained:
    """This process is ending and could not wait any longer."""


Outcome: TypeAlias = (
    Completed | Tripped | Stalled | TimedOut | Refused | Broken | Departed | Drained
)


@dataclass(frozen=True, slots=True)
class Deliver:
    """Give the caller what the attempt brought: the reply, or the upstream's refusal."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Ask again after ``after_s`` seconds."""

    after_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Try no more; `conclude` says what the caller is told."""


Decision: TypeAlias = Deliver | Retry | GiveUp


def decide(
    outcome: Outcome,
    attempt: int,
    policy: RetryPolicy,
    *,
    committed: bool,
    left_s: float,
    draw: float,
    useless: bool = False,
) -> Decision:
    """Decide what follows an attempt.

    Args:
        outcome: how it ended.
        attempt: its number, from 1.
        policy: the budget.
        committed: whether a byte of its reply has reached the caller.
        left_s: seconds that are left of the exchange's time.
        draw: a random number of [0, 1): full jitter, the wait is this share of its bound.
        useless: whether the attempts say that asking again would bring the same (`identical`).
    """
    match outcome:
        case Completed():
            return Deliver()
        case Refused(retryable=False):
            return Deliver()
        case Departed() | Drained() | TimedOut() | Broken(retryable=False):
            return GiveUp()
        case Tripped() | Stalled() | Broken() | Refused():
            if committed or useless or attempt >= policy.max_attempts:
                return GiveUp()
            after_s = _wait_s(outcome, attempt, policy, draw)
            return Retry(after_s) if after_s < left_s else GiveUp()
        case _:
            assert_never(outcome)


def identical(outcomes: Sequence[Outcome]) -> bool:
    """Whether the last attempt was discarded with the very text of an earlier one."""
    fingerprints = [
        outcome.fingerprint if isinstance(outcome, Tripped) else None for outcome in outcomes
    ]
    last = fingerprints.pop()
    return last is not None and last in fingerprints


def _wait_s(outcome: Outcome, attempt: int, policy: RetryPolicy, draw: float) -> float:
    if isinstance(outcome, Refused) and outcome.retry_after_s is not None:
        return min(outcome.retry_after_s, policy.max_wait_s)
    bound_s = policy.initial_wait_s * 2.0 ** min(attempt - 1, 32)
    return draw * min(bound_s, policy.max_wait_s)


def conclude(outcomes: Sequence[Outcome], *, useless: bool = False) -> Refused | LoopguardError:
    """Say what the caller of an exchange without a reply is told.

    Args:
        outcomes: those of all attempts in their order, at least one.
        useless: whether it was given up because an attempt repeated an earlier one.

    Returns:
        The upstream's own refusal, or an error of ours. Any trip among the attempts makes it
        `ModelResponseLoop`: "retries exhausted" would send an operator looking for an outage that
        never happened.
    """
    last = outcomes[-1]
    trips = [outcome for outcome in outcomes if isinstance(outcome, Tripped)]
    match last:
        case Drained():
            return Draining("loopguard is restarting and could not finish this reply")
        case Refused(retryable=False):
            return last
        case _ if trips:
            return _loop_error(trips, len(outcomes), useless=useless)
        case Refused():
            return last
        case Stalled(silent_s):
            return UpstreamTimeout(f"the upstream sent nothing of a reply for {silent_s:g} s")
        case TimedOut(limit, limit_s):
            return UpstreamTimeout(f"the {limit} exceeded its time limit of {limit_s:g} s")
        case Broken(reason):
            return UpstreamUnusable(reason)
        case Completed() | Tripped() | Departed():
            raise AssertionError(f"{last} leaves nothing to be told")
        case _:
            assert_never(last)


def _loop_error(trips: Sequence[Tripped], attempts: int, *, useless: bool) -> ModelResponseLoop:
    last = trips[-1].trip
    words = sum(tripped.words for tripped in trips)
    chars = sum(tripped.chars for tripped in trips)
    share = "every attempt" if len(trips) == attempts else f"{len(trips)} of {attempts} attempts"
    return ModelResponseLoop(
        f"model looped {share}: model looped: {last.sentence}; discarded {len(trips)} "
        f"response(s) totalling {chars} characters of generated output"
        + ("; two of them were identical, so asking again is useless" if useless else ""),
        details={
            "attempts": attempts,
            "loop_aborts": len(trips),
            "discarded_words": words,
            "discarded_characters": chars,
            "rule": last.rule,
            "channel": last.channel,
        },
    )
