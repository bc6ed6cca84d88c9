"""The length backstop is strict, and 0 turns it off."""

import pytest

from loopguard.core.detection.length import chars_until_passed


@pytest.mark.parametrize(
    ("ceiling", "read", "fed", "until"),
    [
        (100, 0, 100, None),
        (100, 0, 101, 101),
        (100, 0, 5000, 101),
        (100, 99, 1, None),
        (100, 99, 2, 2),
        (100, 100, 1, 1),
        (0, 10**9, 10**9, None),
    ],
)
def test_the_ceiling_is_passed_one_character_above_it(
    ceiling: int, read: int, fed: int, until: int | None
) -> None:
    """A reply of exactly the ceiling is within it; the next character passes it."""
    assert chars_until_passed(ceiling, read, fed) == until
