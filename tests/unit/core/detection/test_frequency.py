"""The frequency rule, by the golden facts of the loop-detection document."""

import random
from dataclasses import replace

import pytest

from loopguard.core.detection.frequency import FrequencyKnobs, FrequencyRule
from loopguard.core.detection.words import WordSplitter

DOCUMENT = FrequencyKnobs(
    window_words=256,
    repeat_threshold=32,
    min_offenders=2,
    min_saturated_run=3000,
    max_response_chars=250_000,
)


def tilemap(width: int, height: int, ids: str = "0001112") -> str:
    drawn = random.Random(4)
    rows = (" ".join(f"{drawn.choice(ids)}," for _ in range(width)) for _ in range(height))
    return "const level = [\n  " + "\n  ".join(rows) + "\n];\n"


def judge(text: str, knobs: FrequencyKnobs = DOCUMENT) -> tuple[int | None, FrequencyRule]:
    rule = FrequencyRule(knobs)
    return rule.feed(WordSplitter().feed(text)), rule


def cycle(distinct: int, words: int = 20_000) -> str:
    return "".join(f"w{index % distinct} " for index in range(words))


def test_the_observed_loop_trips_at_word_3065() -> None:
    """`void 0;` trips at the 3,000th consecutive saturated word, with two offenders."""
    taken, rule = judge("void 0; " * 2000)
    assert (taken, rule.run, rule.offenders) == (3065, 3000, 2)


@pytest.mark.parametrize("distinct", range(2, 8))
def test_periods_of_two_to_seven_words_are_seen(distinct: int) -> None:
    """A period of two to seven distinct words trips soon after 3,000 words."""
    taken, _ = judge(cycle(distinct))
    assert taken is not None
    assert 3000 < taken < 3300


@pytest.mark.parametrize("distinct", [1, 8, 9, 60])
def test_one_word_and_eight_and_more_are_never_seen(distinct: int) -> None:
    """A loop of one word has one offender; in one of eight none stands more than 32 times."""
    taken, rule = judge(cycle(distinct))
    assert (taken, rule.peak_run) == (None, 0)


def test_a_flood_of_whitespace_has_no_words() -> None:
    """Whitespace alone never trips."""
    assert judge("\n \t" * 50_000)[0] is None


def test_a_loop_without_whitespace_takes_some_396000_characters() -> None:
    """Six characters do not divide the cap: three slices recur and trip far past the backstop."""
    slices = 65 + 3000
    taken, _ = judge("void0;" * 70_000)
    assert taken is not None
    assert slices <= taken < slices + 50
    assert taken * 128 > DOCUMENT.max_response_chars


def test_a_period_that_divides_the_cap_is_one_offender() -> None:
    """A loop of eight characters without whitespace never trips."""
    assert judge("void 0;".replace(" ", "_") + ";" * 70_000)[0] is None
    assert judge("abcdefg;" * 70_000)[0] is None


def test_a_realistic_tilemap_does_not_trip() -> None:
    """A map of 47 x 32 tiles keeps the window saturated for about 1,400 words and ends."""
    taken, rule = judge(tilemap(47, 32) + "and the program goes on as programs do " * 3)
    assert taken is None
    assert 1300 < rule.peak_run < 1504


def test_a_map_of_55_by_55_is_the_margin() -> None:
    """A map of 55 x 55 tiles peaks a little below the floor."""
    taken, rule = judge(tilemap(55, 55))
    assert taken is None
    assert 2800 < rule.peak_run < 3000


def test_a_map_of_64_by_64_is_taken_for_a_loop() -> None:
    """A map of 64 x 64 tiles of a few ids trips: what the operator of these figures accepts."""
    taken, _ = judge(tilemap(64, 64))
    assert taken is not None
    assert taken < 3200


def test_a_run_that_is_broken_begins_again() -> None:
    """Words that thin the offenders out reset the run, and its peak is remembered."""
    novel = "".join(f"n{index} " for index in range(300))
    taken, rule = judge("void 0; " * 1400 + novel + "void 0; " * 1400)
    assert taken is None
    assert rule.run == 2 * 1400 - 65
    assert rule.run < rule.peak_run < 3000


def test_the_plain_rule_waits_for_a_full_window() -> None:
    """With a floor of 0 the rule trips as soon as the window is full and saturated."""
    assert judge("void 0; " * 200, replace(DOCUMENT, min_saturated_run=0))[0] == 256
    novel = "".join(f"n{index} " for index in range(300))
    late = judge(novel + "void 0; " * 200, replace(DOCUMENT, min_saturated_run=0))[0]
    assert late == 300 + 66


def test_more_offenders_than_words_can_never_be() -> None:
    """With more offenders asked for than the window has words the rule never trips."""
    assert judge("void 0; " * 5000, replace(DOCUMENT, min_offenders=257))[0] is None


@pytest.mark.parametrize(("floor", "words"), [(3000, 65 + 256), (100, 65 + 50), (0, 66)])
def test_suspicion_comes_when_the_window_stays_saturated(floor: int, words: int) -> None:
    """A run as long as the window, or half the floor where that is less, is suspect."""
    rule = FrequencyRule(replace(DOCUMENT, min_saturated_run=floor))
    stream = ["void", "0;"] * 1000
    assert rule.feed(stream[: words - 1]) is None
    assert not rule.suspected
    assert rule.feed(stream[words - 1 : words]) is None
    assert rule.suspected


def test_lone_surrogates_are_words_too() -> None:
    """Text that UTF-8 cannot hold is hashed like any other."""
    assert judge("\ud800 x " * 2000)[0] == 3065
