"""The benchmark itself: that its command runs, and that its arithmetic is right."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.figures import Figures, Sample, percentile
from tests.benchmarks.report import Column, report, spread

COMMAND = [sys.executable, "-m", "tests.benchmarks"]
QUICK = ["--rounds", "1", "--seconds", "1", "--only", "paced", "--relays", "passthrough", "live"]


def test_the_command_prints_a_table_that_its_saved_figures_give_again(tmp_path: Path) -> None:
    """One short round ends in a table and in the aims, and the saved figures give both again."""
    saved = tmp_path / "figures.json"
    ran = subprocess.run(
        [*COMMAND, *QUICK, "--save", str(saved)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "| live | " in ran.stdout
    assert "| live, lone chunk, beside the passthrough | <= 1 x | " in ran.stdout
    assert ran.stdout.strip() == report(Figures.joined([saved]))


def one(number: int, relay: str, value: float) -> Sample:
    return Sample(number, "paced", relay, "chunk_s", value)


def test_relays_are_compared_inside_a_round() -> None:
    """A ratio is taken between figures of one round, and a round that has but one has none."""
    column = Column("", "paced", "chunk_s", beside="passthrough")
    samples = [one(0, "live", 6), one(0, "passthrough", 2), one(1, "live", 8)]
    samples += [one(1, "passthrough", 8), one(2, "live", 5)]
    assert column.values(Figures(samples=samples), "live") == [3, 1]


def test_rounds_of_several_runs_follow_one_another(tmp_path: Path) -> None:
    """Joined runs keep each round's figures together and say once what they share."""
    paths = [tmp_path / "first", tmp_path / "second"]
    for path in paths:
        rounds = [one(number, relay, 1) for number in range(2) for relay in ("live", "nginx")]
        Figures(["a machine"], [path.name], rounds).save(path)
    joined = Figures.joined(paths)
    assert joined.values("paced", "live", "chunk_s") == dict.fromkeys(range(4), 1)
    assert joined.machine == ["a machine"]
    assert joined.notes == ["first", "second"]


def test_what_was_measured_on_a_busy_machine_can_be_left_out() -> None:
    """Undisturbed figures lack those of a round, load and relay that met other programs."""
    quiet, busy = one(0, "live", 6), one(1, "live", 9)
    shares = [
        taken._replace(figure="others_share", value=at) for taken, at in ((quiet, 0.1), (busy, 1))
    ]
    kept = Figures(samples=[quiet, busy, *shares]).undisturbed()
    assert kept.values("paced", "live", "chunk_s") == {0: 6}
    assert kept.notes == ["Left out: 1 of 2 measurements, since the machine was busy"]


@pytest.mark.parametrize(("share", "value"), [(0.5, 2), (0.75, 3), (0.99, 4), (0, 1)])
def test_a_percentile_is_a_value_that_was_seen(share: float, value: float) -> None:
    """A percentile is the least value that so large a share does not exceed."""
    assert percentile([4, 2, 3, 1], share) == value


def test_a_spread_shows_the_rounds() -> None:
    """Several rounds are their median and their ends, in three digits; one is itself."""
    assert spread([1.234, 12.34, 123.4]) == "12.3 (1.23 to 123)"
    assert spread([1234.5]) == "1,234"
    assert spread([]) == "-"
