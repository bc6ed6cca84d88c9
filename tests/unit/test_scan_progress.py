"""The bar says how far a scan has come, and stays out of the way."""

import io

import pytest

from loopguard.scan.progress import Progress


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_short_scan_shows_nothing(clock: Clock) -> None:
    """Before its patience ends nothing is written, and nothing is taken away."""
    out = io.StringIO()
    progress = Progress(out, 100, clock)
    progress.show(50, 1, 0)
    progress.clear()
    assert out.getvalue() == ""


def test_the_line_tells_the_share(clock: Clock) -> None:
    """The line shows the share of the bytes read, and what was found so far."""
    out = io.StringIO()
    progress = Progress(out, 100, clock, patience_s=0)
    progress.show(50, 1234, 5)
    assert out.getvalue() == "\r\x1b[K[############............]  50%  1,234 replies, 5 tripped"


def test_a_line_is_drawn_ten_times_a_second_at_most(clock: Clock) -> None:
    """A line that was drawn a moment ago stays; one that was taken away comes back at once."""
    out = io.StringIO()
    progress = Progress(out, 100, clock, patience_s=0)
    for _ in range(100):
        clock.now += 0.0101
        progress.show(50, 1, 0)
    assert 9 <= out.getvalue().count("[#") <= 11
    progress.clear()
    before = out.getvalue()
    progress.show(50, 1, 0)
    assert out.getvalue() != before


def test_a_pipe_has_no_share(clock: Clock) -> None:
    """Where the size is unknown the replies are counted."""
    out = io.StringIO()
    Progress(out, None, clock, patience_s=0).show(50, 3, 1)
    assert out.getvalue() == "\r\x1b[K3 replies, 1 tripped"


def test_nothing_to_read_is_all_read(clock: Clock) -> None:
    """Files without a byte are read whole."""
    out = io.StringIO()
    Progress(out, 0, clock, patience_s=0).show(0, 0, 0)
    assert " 100%" in out.getvalue()
