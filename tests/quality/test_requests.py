"""What the request gate is for, on pairs of our own making."""

import pytest

from tests.quality.requests import Pair, asked, not_asked, tripped_at


@pytest.mark.parametrize("pair", list(asked()), ids=lambda pair: pair.name)
def test_asked_repetition_passes(pair: Pair) -> None:
    """A reply that repeats what its request asked to be repeated does not trip."""
    assert tripped_at(pair, gate=True) is None


def test_the_gate_is_needed() -> None:
    """Without the gate more than half of those replies would be killed."""
    pairs = list(asked())
    assert sum(tripped_at(pair, gate=False) is not None for pair in pairs) > len(pairs) / 2


@pytest.mark.parametrize("pair", list(not_asked()), ids=lambda pair: pair.name)
def test_loops_trip_whatever_was_asked(pair: Pair) -> None:
    """A loop is cut, however large the number in its request."""
    char = tripped_at(pair, gate=True)
    assert char is not None
    assert char <= 40_000
