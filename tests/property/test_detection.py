"""The detector, held to a naive recount and to every split of the text."""

import re
from collections import Counter
from itertools import compress

from hypothesis import given
from hypothesis import strategies as st

from loopguard.core.detection.detector import Detection, Detector, Trip
from loopguard.core.detection.frequency import FrequencyKnobs
from loopguard.core.detection.stretch import BLOCK_CHARS, StretchKnobs, StretchRule

KNOBS = st.builds(
    FrequencyKnobs,
    window_words=st.integers(1, 12),
    repeat_threshold=st.integers(1, 4),
    min_offenders=st.integers(1, 3),
    min_saturated_run=st.integers(0, 12),
    max_response_chars=st.sampled_from([0, 1, 40, 300, 3000]),
)
PIECES = st.lists(
    st.one_of(
        st.text("ab \n", max_size=12),
        st.text(max_size=6),
        st.sampled_from(["a b ", "a ", "a b c ", "\u3000", "x" * 60, "yx" * 90]).flatmap(
            lambda unit: st.integers(1, 8).map(lambda times: unit * times)
        ),
    ),
    max_size=30,
)


def recount(text: str, knobs: FrequencyKnobs) -> tuple[str, int, int] | None:
    """The rule as the document tells it, one character at a time; rule, words, characters."""
    window: list[str] = []
    pending = ""
    words = run = 0
    for chars, character in enumerate(text, 1):
        word = None
        if not character.isspace():
            pending += character
            if len(pending) == 128:
                word, pending = pending, ""
        elif pending:
            word, pending = pending, ""
        if word is not None:
            words += 1
            window = [*window, word][-knobs.window_words :]
            offending = [n for n in Counter(window).values() if n > knobs.repeat_threshold]
            run = run + 1 if len(offending) >= knobs.min_offenders else 0
            if run and run >= knobs.min_saturated_run and len(window) == knobs.window_words:
                return "frequency", words, chars
        if knobs.max_response_chars and chars > knobs.max_response_chars:
            return "length", words, chars
    return None


def judge(pieces: list[str], knobs: FrequencyKnobs) -> Trip | None:
    detector = Detector(Detection(("content",), knobs))
    for piece in pieces:
        detector.feed("content", piece)
    return detector.feed("content", "")


@given(PIECES, KNOBS)
def test_the_detector_equals_a_naive_recount(pieces: list[str], knobs: FrequencyKnobs) -> None:
    """The verdict, its word and its character are those of a naive recount of the text."""
    trip = judge(pieces, knobs)
    seen = None if trip is None else (trip.rule, trip.words, trip.chars)
    assert seen == recount("".join(pieces), knobs)


@given(PIECES, KNOBS)
def test_any_split_gives_the_same_verdict(pieces: list[str], knobs: FrequencyKnobs) -> None:
    """One piece, single characters and any pieces between give the same trip."""
    text = "".join(pieces)
    trip = judge(pieces, knobs)
    assert judge([text], knobs) == trip
    assert judge(list(text), knobs) == trip


STRETCH_KNOBS = st.builds(
    StretchKnobs,
    min_stale_chars=st.integers(20, 1_000),
    novelty_cost_chars=st.integers(0, 40),
    structure_weight=st.sampled_from([0.0, 0.5, 1.0]),
    data_weight=st.sampled_from([0.0, 0.5, 1.0]),
)
LONG_PIECES = st.lists(
    st.one_of(
        PIECES.map("".join),
        st.text("ab 1", min_size=1, max_size=40).flatmap(
            lambda unit: st.integers(1, 60).map(lambda times: unit * times)
        ),
        st.integers(0, 99).map(
            lambda first: "".join(f"Row {first + n}: all is well.\n" for n in range(12))
        ),
    ),
    max_size=12,
)


def stretch_of(pieces: list[str], knobs: StretchKnobs) -> tuple[int | None, float]:
    rule = StretchRule(knobs)
    read = 0
    for piece in pieces:
        taken = rule.feed(piece)
        if taken is not None:
            return read + taken, rule.level
        read += len(piece)
    return None, rule.level


@given(LONG_PIECES, STRETCH_KNOBS)
def test_the_stretch_rule_is_independent_of_the_split(
    pieces: list[str], knobs: StretchKnobs
) -> None:
    """One piece, single characters and any pieces between give the same verdict and level."""
    text = "".join(pieces)
    verdict = stretch_of([text], knobs)
    assert stretch_of(pieces, knobs) == verdict
    assert stretch_of(list(text), knobs) == verdict


@given(st.lists(st.sampled_from(["ab", "ba", "abba"]), max_size=300), st.integers(1, 4))
def test_the_level_equals_a_naive_recount(words: list[str], times: int) -> None:
    """Where nothing lowers it, the level is the length of all that ends a phrase said before twice.

    The texts are shorter than the lookback, and their 27 phrases have slots of their own.
    """
    text = " ".join(words * times) + " "
    rule = StretchRule(StretchKnobs(10**6, 0, 1.0, 1.0))
    rule.feed(text)
    pieces = re.findall(r"\w+ ?", text[: len(text) - len(text) % BLOCK_CHARS])[:-1]
    phrases = [tuple(pieces[at : at + 3]) for at in range(len(pieces) - 2)]
    stale = [phrases[:at].count(phrase) >= 2 for at, phrase in enumerate(phrases)]
    assert rule.level == sum(len(phrase[-1]) for phrase in compress(phrases, stale))
