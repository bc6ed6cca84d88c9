"""The decision after an attempt, for every outcome, budget and moment."""

from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from loopguard.core.detection.detector import Trip
from loopguard.core.retry import (
    Broken,
    Completed,
    Decision,
    Deliver,
    Departed,
    Drained,
    Outcome,
    Refused,
    Retry,
    RetryPolicy,
    Stalled,
    TimedOut,
    Tripped,
    conclude,
    decide,
)
from loopguard.errors import ModelResponseLoop

SECONDS = st.floats(0, 1e6)
TRIPPED = Tripped(Trip("frequency", "content", 0, 3065, 12261, "2 words repeated"), 3065, 12261)
OUTCOMES: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Completed),
    st.just(TRIPPED),
    st.builds(Stalled, SECONDS),
    st.builds(TimedOut, st.sampled_from(["attempt", "exchange"]), SECONDS),
    st.builds(
        Refused,
        status=st.integers(200, 599),
        body=st.just(b"{}"),
        retry_after_s=st.none() | SECONDS,
        in_stream=st.booleans(),
    ),
    st.builds(Broken, st.just("it broke"), st.booleans()),
    st.builds(Departed),
    st.builds(Drained),
)
POLICIES = st.builds(
    RetryPolicy,
    max_attempts=st.integers(1, 9),
    initial_wait_s=SECONDS,
    max_wait_s=SECONDS,
    exchange_timeout_s=SECONDS,
)
DRAWS = st.floats(0, 1, exclude_max=True)


@given(
    OUTCOMES,
    st.integers(1, 12),
    POLICIES,
    st.fixed_dictionaries({"committed": st.booleans(), "left_s": SECONDS, "draw": DRAWS}),
)
def test_waits_are_within_bounds(
    outcome: Outcome, attempt: int, policy: RetryPolicy, moment: dict[str, Any]
) -> None:
    """Nothing is retried once committed or past the budget, and no wait is past any limit."""
    decision = decide(outcome, attempt, policy, **moment)
    if isinstance(decision, Retry):
        assert not moment["committed"]
        assert attempt < policy.max_attempts
        assert 0 <= decision.after_s <= policy.max_wait_s
        assert decision.after_s < moment["left_s"]
        if not (isinstance(outcome, Refused) and outcome.retry_after_s is not None):
            assert decision.after_s <= policy.initial_wait_s * 2 ** (attempt - 1)


@given(st.lists(OUTCOMES, min_size=9, max_size=9), POLICIES, SECONDS, DRAWS)
def test_an_exchange_ends_within_its_budget(
    outcomes: list[Outcome], policy: RetryPolicy, left_s: float, draw: float
) -> None:
    """However its attempts end, an exchange stays within its attempts and its time."""
    attempts = 0
    waited_s = 0.0
    decision: Decision = Retry(0)
    while isinstance(decision, Retry):
        waited_s += decision.after_s
        outcome = outcomes[attempts]
        attempts += 1
        decision = decide(
            outcome, attempts, policy, committed=False, left_s=left_s - waited_s, draw=draw
        )
    assert attempts <= policy.max_attempts
    assert waited_s <= left_s
    assert isinstance(decision, Deliver) == (
        isinstance(outcome, Completed) or (isinstance(outcome, Refused) and not outcome.retryable)
    )


@given(st.lists(OUTCOMES, max_size=4), st.lists(OUTCOMES, max_size=4))
def test_a_trip_is_never_called_anything_else(before: list[Outcome], after: list[Outcome]) -> None:
    """What gave up after a trip is told as a loop, however the other attempts ended."""
    outcomes = [*before, TRIPPED, *after]
    last = outcomes[-1]
    assume(not isinstance(last, Completed | Departed | Drained))
    assume(not isinstance(last, Refused) or last.retryable)
    assert isinstance(conclude(outcomes), ModelResponseLoop)
