"""What follows an attempt."""

import pytest

from loopguard.core.detection.detector import Trip
from loopguard.core.retry import (
    Broken,
    Completed,
    Decision,
    Deliver,
    Departed,
    Drained,
    GiveUp,
    Outcome,
    Refused,
    Retry,
    RetryPolicy,
    Stalled,
    TimedOut,
    Tripped,
    conclude,
    decide,
    identical,
)
from loopguard.errors import Draining, ModelResponseLoop, UpstreamTimeout, UpstreamUnusable

POLICY = RetryPolicy(max_attempts=4, initial_wait_s=1, max_wait_s=60, exchange_timeout_s=600)
TRIP = Tripped(Trip("frequency", "content", 0, 3065, 12261, "2 words repeated"), 3065, 12261)
RETRIED = [TRIP, Stalled(120), Broken("x"), *(Refused(s, b"") for s in (408, 429, 500, 503, 529))]


def after(outcome: Outcome, attempt: int = 1, **changes: object) -> Decision:
    arguments = {"committed": False, "left_s": 600.0, "draw": 0.5} | changes
    return decide(outcome, attempt, POLICY, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("outcome", RETRIED)
def test_retried(outcome: Outcome) -> None:
    """Trips, stalls, broken transport, 408, 429 and 5xx are retried until the budget is spent."""
    assert [after(outcome, number) for number in (1, 2, 3, 4)] == [
        Retry(0.5),
        Retry(1.0),
        Retry(2.0),
        GiveUp(),
    ]


@pytest.mark.parametrize("outcome", RETRIED)
def test_committed_is_never_retried(outcome: Outcome) -> None:
    """Nothing is asked again once a byte of the reply has reached the caller."""
    assert after(outcome, committed=True) == GiveUp()


def test_402_is_retried_where_it_says_when() -> None:
    """A 402 is asked again after its Retry-After, and never without one."""
    assert Refused(402, b"", retry_after_s=0.0).retryable
    assert not Refused(402, b"").retryable
    assert not Refused(403, b"", retry_after_s=1.0).retryable


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 413, 422])
def test_refusals_for_the_requests_own_sake_are_delivered(status: int) -> None:
    """What the upstream refuses for the request's own sake is the caller's answer."""
    assert after(Refused(status, b"")) == Deliver()


def test_completed_is_delivered() -> None:
    """A reply that came to its end is the caller's answer."""
    assert after(Completed()) == Deliver()


@pytest.mark.parametrize(
    "outcome",
    [Departed(), Drained(), TimedOut("attempt", 600), Broken("no stream", retryable=False)],
)
def test_useless_retries_are_not_made(outcome: Outcome) -> None:
    """Nothing is asked again for a caller who left, while draining, or when it would end alike."""
    assert after(outcome) == GiveUp()


def test_retry_after_is_honoured_up_to_the_cap() -> None:
    """The upstream's own wait replaces ours, without jitter, up to the cap."""
    assert after(Refused(429, b"", retry_after_s=7)) == Retry(7)
    assert after(Refused(429, b"", retry_after_s=3600)) == Retry(60)


def test_waits_are_capped_and_jittered() -> None:
    """A wait is a random share of its bound, and no bound exceeds the cap."""
    policy = RetryPolicy(100, initial_wait_s=1, max_wait_s=60, exchange_timeout_s=600)
    waits = [
        decide(TRIP, attempt, policy, committed=False, left_s=600, draw=draw)
        for attempt, draw in ((1, 0.0), (7, 0.25), (99, 0.999))
    ]
    assert waits == [Retry(0.0), Retry(15.0), Retry(59.94)]


def test_no_wait_beyond_the_exchanges_time() -> None:
    """A wait that would use up the exchange's time is not begun."""
    assert after(TRIP, left_s=0.4) == GiveUp()


def test_every_attempt_looped() -> None:
    """The error of an exchange that looped in every attempt says what the document says."""
    error = conclude([TRIP] * 4)
    assert isinstance(error, ModelResponseLoop)
    assert error.message == (
        "model looped every attempt: model looped: 2 words repeated, 3065 words into the reply "
        "(3065 words, 12261 characters read before it was abandoned); discarded 4 response(s) "
        "totalling 49044 characters of generated output"
    )
    assert (error.status, error.stream_code, error.retryable) == (502, 400, False)
    assert error.details == {
        "attempts": 4,
        "loop_aborts": 4,
        "discarded_words": 12260,
        "discarded_characters": 49044,
        "rule": "frequency",
        "channel": "content",
    }


def test_any_trip_makes_it_the_loop_error() -> None:
    """An exchange whose budget ended on something else is still told of its loops."""
    error = conclude([TRIP, Refused(502, b""), Stalled(120), Refused(503, b"")])
    assert isinstance(error, ModelResponseLoop)
    assert error.message.startswith("model looped 1 of 4 attempts: ")


def test_the_upstreams_refusal_is_told_as_it_is() -> None:
    """Where nothing looped, and where the request itself is refused, the upstream's word stands."""
    spent, refused = Refused(503, b"{}"), Refused(402, b"{}")
    assert conclude([spent] * 4) is spent
    assert conclude([TRIP, refused]) is refused


@pytest.mark.parametrize(
    ("outcome", "error", "message"),
    [
        (Stalled(120.0), UpstreamTimeout, "the upstream sent nothing of a reply for 120 s"),
        (TimedOut("exchange", 1800), UpstreamTimeout, "the exchange exceeded its time limit"),
        (Broken("it broke"), UpstreamUnusable, "it broke"),
        (Drained(), Draining, "loopguard is restarting"),
    ],
)
def test_other_ends(outcome: Outcome, error: type[Exception], message: str) -> None:
    """Every other end has an error of its own that says what happened."""
    told = conclude([outcome])
    assert isinstance(told, error)
    assert message in str(told)


def test_what_needs_no_telling() -> None:
    """An exchange that has a reply, or whose caller left, is not asked what to tell."""
    with pytest.raises(AssertionError):
        conclude([Completed()])


def test_identical_attempts_are_useless() -> None:
    """An attempt that repeats an earlier one's text says that asking again is useless."""
    one, other = (Tripped(TRIP.trip, 3065, 12261, mark) for mark in (b"one", b"other"))
    assert identical([one, Stalled(1), one])
    assert not identical([one, other])
    assert not identical([TRIP, TRIP])  # they say too little to be told apart
    assert not identical([one, Stalled(1)])
    assert after(one, useless=True) == GiveUp()
    error = conclude([one, one], useless=True)
    assert isinstance(error, ModelResponseLoop)
    assert error.message.endswith("identical, so asking again is useless")
