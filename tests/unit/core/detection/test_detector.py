"""The Detector keeps a state for each choice, channel and call, and has one verdict."""

import random
import re
from dataclasses import replace

import pytest

from loopguard.core.detection.detector import (
    MAX_FLOOR_FACTOR,
    Detection,
    Detector,
    Level,
    Trip,
    describe,
)
from loopguard.core.detection.frequency import FrequencyKnobs
from loopguard.core.detection.stretch import StretchKnobs
from loopguard.core.events import Channel

DOCUMENT = FrequencyKnobs(256, 32, 2, 3000, 250_000)
DISARMED = Detection(channels=(), frequency=None)
ARMED = Detection(channels=("content", "reasoning", "arguments"), frequency=DOCUMENT)
STRETCH = Detection(
    channels=("content", "arguments"), frequency=None, stretch=StretchKnobs(2350, 12, 0.4, 0.07)
)
BOTH = replace(STRETCH, frequency=DOCUMENT)
LOOP = "void 0; " * 2000
SENTENCE = "Now I run it and look at the result.\n"


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


def test_the_stretch_rule_tells_what_it_saw() -> None:
    """Its trip says how much was not new, the rounds and where they began; the sample is apart."""
    trip = Detector(BOTH).feed("content", "Let us begin.\n" + SENTENCE * 500)
    assert trip is not None
    assert (trip.rule, trip.channel, trip.period_chars) == ("stretch", "content", 37)
    assert trip.onset_char is not None
    assert abs(trip.onset_char - 14) < 37
    assert trip.sample in SENTENCE * 2
    told = (
        r"nothing new said in 24\d\d characters \(68 rounds of 37 characters\), 623 words into "
        r"the reply \(623 words, 2560 characters read before it was abandoned\)"
    )
    assert re.fullmatch(told, trip.sentence)
    assert "look" not in repr(trip)


def test_a_loop_without_a_period_is_told_without_rounds() -> None:
    """Where rounds change places the sentence counts none."""
    drawn = random.Random(3)
    rounds = ["I will send the files. ", "Let me finish the report now. ", "All of it is done. "]
    trip = Detector(STRETCH).feed("content", "".join(drawn.choices(rounds, k=500)))
    assert trip is not None
    assert re.match(r"nothing new said in \d+ characters, ", trip.seen + ", ")
    assert trip.period_chars is None


@pytest.mark.parametrize("size", [1, 5, 256, 1000, 100_000])
def test_the_earlier_of_all_rules_decides_whatever_the_pieces(size: int) -> None:
    """With every rule armed the verdict is the same for any pieces."""
    for text in (LOOP, SENTENCE * 500, "0 1 " * 4000):
        whole = Detector(BOTH).feed("content", text)
        detector = Detector(BOTH)
        for start in range(0, len(text), size):
            detector.feed("content", text[start : start + size])
        assert detector.feed("content", "") == whole is not None
        assert detector.chars == whole.chars


def test_the_frequency_rule_speaks_where_it_is_first() -> None:
    """Two numbers in turn are data to the stretch rule, and two words to the frequency rule."""
    trip = Detector(BOTH).feed("content", "0 1 " * 4000)
    assert trip is not None
    assert (trip.rule, trip.words) == ("frequency", 3065)


def test_arguments_are_judged_unescaped() -> None:
    """A loop in a call's arguments is seen as the lines that its escapes stand for."""
    text = '{"input": "' + "    pass  # placeholder\\n" * 1000
    trips = []
    for size in (1, 3, 50, len(text)):
        detector = Detector(STRETCH)
        for start in range(0, len(text), size):
            detector.feed("arguments", text[start : start + size], call=1)
        trips.append(detector.feed("arguments", ""))
    assert trips[0] is not None
    assert trips[0].period_chars == len("    pass  # placeholder\n")
    assert trips == trips[:1] * 4


def test_only_the_channels_of_the_profile_are_stretched() -> None:
    """A channel that the profile does not name is counted and not judged."""
    detector = Detector(STRETCH)
    assert detector.feed("reasoning", SENTENCE * 1000) is None
    assert not detector.suspected
    assert detector.chars == 37_000


def test_suspicion_of_the_stretch_rule_counts_too() -> None:
    """A quarter of the way to its floor the reply is suspected."""
    detector = Detector(BOTH)
    detector.feed("content", SENTENCE * 10)
    assert not detector.suspected
    detector.feed("content", SENTENCE * 20)
    assert detector.suspected


def test_a_request_for_repetition_raises_both_floors() -> None:
    """Twice the floor is reached at about twice the characters, and the factor is capped."""
    plain = Detector(STRETCH).feed("content", SENTENCE * 5000)
    raised = Detector(STRETCH, floor_factor=2.0).feed("content", SENTENCE * 5000)
    capped = Detector(STRETCH, floor_factor=1e9).feed("content", SENTENCE * 5000)
    assert plain is not None
    assert raised is not None
    assert capped is not None
    assert 1.8 < raised.chars / plain.chars < 2.1
    assert capped.chars < plain.chars * MAX_FLOOR_FACTOR
    twice = Detector(ARMED, floor_factor=2.0).feed("content", LOOP * 2)
    assert twice is not None
    assert twice.words == 6065


def test_levels_say_how_near_each_rule_came() -> None:
    """Each armed rule tells its level, its peak and its floor, on the channel that is nearest."""
    detector = Detector(BOTH)
    detector.feed("content", "void 0; " * 100)
    detector.feed("arguments", "Let me see. " * 50)
    levels = detector.levels()
    assert levels["frequency"] == Level(now=135, peak=135, floor=3000)
    assert levels["length"] == Level(now=800, peak=800, floor=250_001)
    assert levels["stretch"].floor == 2350
    assert 400 < levels["stretch"].now == levels["stretch"].peak < 600
    assert Detector(BOTH).levels() == {}
    unbounded = Detector(replace(BOTH, frequency=replace(DOCUMENT, max_response_chars=0)))
    unbounded.feed("content", "void 0; ")
    assert unbounded.levels().keys() == {"frequency", "stretch"}
    alone = Detector(ARMED)
    alone.feed("content", "void 0; ")
    assert alone.levels().keys() == {"frequency", "length"}


def test_levels_can_be_looked_at_for_nothing() -> None:
    """Levels as judged leave what waits to wait, and are never above the levels."""
    looked_at, left_alone = Detector(BOTH), Detector(BOTH)
    for detector in (looked_at, left_alone):
        for _ in range(100):
            detector.feed("content", "void 0; ")
    judged = looked_at.judged_levels()
    assert judged == looked_at.judged_levels() == left_alone.judged_levels()
    assert 0 < judged["frequency"].now < left_alone.levels()["frequency"].now == 135
    assert judged["length"].now == 800


def test_a_channel_that_has_recovered_hides_no_other() -> None:
    """Of two channels the one that is nearer now is told, not the one that once was."""
    detector = Detector(STRETCH)
    detector.feed("arguments", "Let me see. " * 100)
    detector.feed("arguments", " ".join(f"Then came the {n * 7919}th of them," for n in range(400)))
    once = detector.levels()["stretch"]
    detector.feed("content", "Let me see. " * 70)
    assert once.now < detector.levels()["stretch"].now < once.peak


def test_identical_calls_have_a_level() -> None:
    """The calls rule's level is the whole identical calls in a row, on the choice with the most."""
    detector = Detector(replace(DISARMED, max_identical_calls=16))
    for call in range(5):
        detector.begin_call("look", 0, call)
    detector.begin_call("look", 1, 0)
    assert detector.levels() == {"calls": Level(now=4, peak=4, floor=17)}


def test_choices_without_end_are_not_read() -> None:
    """What more choices say than anybody asks for is not kept; those that are read still trip."""
    detector = Detector(replace(BOTH, max_identical_calls=16))
    for choice in range(2_000):
        detector.begin_call("look", choice)
        detector.feed("arguments", "{}", choice)
        detector.feed("content", "A word. ", choice)
        detector.feed("reasoning", "A word. ", choice)
    assert len(detector._readings) == 2 * 128 + 8
    assert len(detector._calls) == 2 * 128 + 8
    assert detector.feed("content", LOOP * 5_000, 1_999) is None
    assert detector.feed("content", LOOP * 5_000, 100) is not None


def test_what_has_just_begun_is_not_suspected() -> None:
    """Before a rule has judged anything of a reply nothing of it is held back."""
    detector = Detector(BOTH)
    detector.feed("content", "void 0; ")
    assert not detector.suspected


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
    assert str(describe(BOTH)).endswith(
        "or once it passes 250000 characters, or once it has said nothing new for 2350 characters "
        "of prose or their weight in other text"
    )
    assert str(describe(STRETCH)).startswith(
        "loop detection: armed \u2014 a reply is abandoned once it has said nothing new"
    )


def test_the_providers_own_verdict_is_a_trip() -> None:
    """A provider that says itself that the model looped is believed, where anything is armed."""
    detector = Detector(ARMED)
    detector.feed("content", "one two three ")
    trip = detector.take_verdict("repetition", 1)
    assert trip == Trip(
        "upstream", "content", 1, 3, 14, seen="the provider finished it as `repetition`"
    )
    assert detector.feed("content", "more") is trip
    assert detector.take_verdict("repeat") is trip
    assert Detector(DISARMED).take_verdict("repetition") is None


def test_fingerprint_is_of_all_that_was_read() -> None:
    """Two replies have one fingerprint if every channel of them holds the same text."""

    def fingerprint(content: str, reasoning: str) -> bytes | None:
        detector = Detector(ARMED)
        detector.feed("reasoning", reasoning)
        detector.feed("content", content)
        return detector.fingerprint()

    said = " ".join(str(number) for number in range(500))
    assert fingerprint(LOOP, said) == fingerprint(LOOP, said) is not None
    assert fingerprint(LOOP, said) != fingerprint(LOOP, said + "!")
    assert fingerprint(LOOP, "Hm.") is None


def test_many_tool_calls_cost_no_more_than_a_few() -> None:
    """A reply of thousands of calls is counted whole, and only the latest calls are kept."""
    detector, single = Detector(STRETCH), Detector(STRETCH)
    single.feed("arguments", '"one two" ')
    for call in range(3000):
        detector.feed("arguments", '"one two" ', 0, call)
    assert (detector.words, detector.chars) == (3000 * single.words, 3000 * single.chars)
    assert len(detector._readings) == 8
