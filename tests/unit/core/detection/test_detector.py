"""The Detector keeps a state for each choice, channel and call, and has one verdict."""

from dataclasses import replace

import pytest

from loopguard.core.detection.detector import DISARMED, Detection, Detector, Trip, describe
from loopguard.core.detection.frequency import FrequencyKnobs
from loopguard.core.events import Channel

DOCUMENT = FrequencyKnobs(256, 32, 2, 3000, 250_000)
ARMED = Detection(channels=("content", "reasoning", "arguments"), frequency=DOCUMENT)
LOOP = "void 0; " * 2000


def test_a_trip_is_told_in_the_sentence_of_the_document() -> None:
    """The observed loop is told in the very sentence of the document."""
    trip = Detector(ARMED).feed("content", LOOP)
    assert trip == Trip(
        "frequency",
        "content",
        0,
        words=3065,
        chars=12_261,
        seen="2 words repeated across 3000 consecutive words",
    )
    assert str(trip) == (
        "2 words repeated across 3000 consecutive words, 3065 words into the reply "
        "(3065 words, 12261 characters read before it was abandoned)"
    )


@pytest.mark.parametrize("size", [1, 4, 7, 8, 1000, 12_260, 12_261, 60_000])
def test_the_verdict_is_reached_at_a_character(size: int) -> None:
    """Whatever the pieces, the verdict comes with the piece that holds its character."""
    detector = Detector(ARMED)
    for start in range(0, len(LOOP), size):
        trip = detector.feed("content", LOOP[start : start + size])
        assert (trip is not None) == (min(start + size, len(LOOP)) >= 12_261)
        if trip is not None:
            assert (trip.words, trip.chars) == (3065, 12_261)
            break
    assert (detector.words, detector.chars) == (3065, 12_261)


def test_a_newline_a_unit_changes_nothing() -> None:
    """The same loop, one unit a line, trips at the same word and character."""
    trip = Detector(ARMED).feed("content", "void 0;\n" * 2000)
    assert trip is not None
    assert (trip.words, trip.chars) == (3065, 12_261)


def test_a_trip_is_absorbing() -> None:
    """After a trip every feed returns that trip and changes nothing."""
    detector = Detector(ARMED)
    trip = detector.feed("content", LOOP)
    assert detector.feed("content", "and then a novel end ") is trip
    assert detector.feed("reasoning", "hm ") is trip
    assert detector.feed("content", "") is trip
    assert (detector.words, detector.chars) == (3065, 12_261)


def test_the_length_backstop_trips_one_character_past_the_ceiling() -> None:
    """A reply of novel words is abandoned at the first character above the ceiling."""
    text = "".join(f"n{index} " for index in range(100_000))
    detector = Detector(ARMED)
    assert detector.feed("content", text[:250_000]) is None
    trip = detector.feed("content", text[250_000:])
    assert trip is not None
    assert (trip.rule, trip.chars) == ("length", 250_001)
    words = len(text[:250_001].split()) - (not text[250_000].isspace())
    assert trip.sentence == (
        f"more than 250000 characters written, {words} words into the reply "
        f"({words} words, 250001 characters read before it was abandoned)"
    )


def test_the_earlier_character_decides_between_two_rules() -> None:
    """Where one piece holds both verdicts, the one at the earlier character counts."""
    for ceiling, rule, chars in ((12_259, "length", 12_260), (12_260, "frequency", 12_261)):
        knobs = replace(DOCUMENT, max_response_chars=ceiling)
        trip = Detector(replace(ARMED, frequency=knobs)).feed("content", LOOP)
        assert trip is not None
        assert (trip.rule, trip.chars) == (rule, chars)


def test_a_whitespace_free_loop_meets_the_backstop_first() -> None:
    """The frequency rule would need some 396,000 characters of it, with the backstop off."""
    text = "void0;" * 70_000
    trip = Detector(ARMED).feed("content", text)
    assert trip is not None
    assert (trip.rule, trip.chars) == ("length", 250_001)
    unbounded = replace(ARMED, frequency=replace(DOCUMENT, max_response_chars=0))
    trip = Detector(unbounded).feed("content", text)
    assert trip is not None
    assert trip.rule == "frequency"
    assert 390_000 < trip.chars < 400_000


@pytest.mark.parametrize("channel", ["reasoning", "arguments"])
def test_the_frequency_rule_is_fed_content_alone(channel: Channel) -> None:
    """Neither it nor the length backstop sees reasoning or arguments, which are counted."""
    detector = Detector(ARMED)
    assert detector.feed(channel, "void 0; " * 40_000) is None
    assert not detector.suspected
    assert (detector.words, detector.chars) == (80_000, 320_000)


def test_choices_channels_and_calls_do_not_mix() -> None:
    """Each choice, channel and call is read on its own; the totals are over all of them."""
    detector = Detector(ARMED)
    for _ in range(3000):
        assert detector.feed("content", "void ", choice=0) is None
        assert detector.feed("content", "0; ", choice=1) is None
        assert detector.feed("arguments", "void ", call=0) is None
        assert detector.feed("arguments", "0; ", call=1) is None
    assert (detector.words, detector.chars) == (12_000, 48_000)
    trip = detector.feed("content", LOOP, choice=1)
    assert trip is not None
    assert trip.choice == 1
    assert detector.words == 9000 + trip.words


def test_suspicion_precedes_the_trip() -> None:
    """A loop is suspected long before it trips; ordinary words are not."""
    detector = Detector(ARMED)
    detector.feed("content", "".join(f"n{index} " for index in range(1000)))
    assert not detector.suspected
    detector.feed("content", "void 0; " * 400)
    assert detector.suspected


def test_nothing_is_kept_before_a_reply_has_begun() -> None:
    """An empty piece allocates nothing."""
    detector = Detector(ARMED)
    assert detector.feed("content", "") is None
    assert not detector._readings


def test_a_disarmed_detector_reads_nothing() -> None:
    """Where no rule is armed nothing is counted, kept or suspected."""
    detector = Detector(DISARMED)
    assert detector.feed("content", LOOP * 30) is None
    assert (detector.words, detector.chars, detector.suspected) == (0, 0, False)
    assert not detector._readings


def test_the_launch_names_what_is_armed() -> None:
    """The launch sentence is the document's, and there is none where nothing is armed."""
    assert describe(ARMED) == (
        "loop detection: armed \u2014 a reply is abandoned after 3000 consecutive words during "
        "which 2 or more words have each occurred more than 32 times in the last 256, or once it "
        "passes 250000 characters"
    )
    unbounded = replace(ARMED, frequency=replace(DOCUMENT, max_response_chars=0))
    assert str(describe(unbounded)).endswith("more than 32 times in the last 256")
    assert describe(DISARMED) is None
