"""The calls rule counts what is the same, in a row, and nothing else."""

from collections.abc import Iterable

import pytest

from loopguard.core.detection.calls import CallsRule
from loopguard.core.detection.detector import Detection, Detector, describe
from loopguard.core.events import CHANNELS

Call = tuple[str, str]


def tripped_at(calls: Iterable[Call], max_identical_calls: int = 3) -> int | None:
    """The number of the call at whose beginning the rule trips, counted from 1."""
    rule = CallsRule(max_identical_calls)
    for number, (name, arguments) in enumerate(calls, start=1):
        if rule.begin(name, number):
            return number
        for piece in arguments:
            rule.feed(piece, number)
    return None


@pytest.mark.parametrize("arguments", ["", "{}", '{"path": "ä 😀"}', '{"half": "\ud83d"}'])
def test_the_same_call_again_and_again_trips(arguments: str) -> None:
    """Once more than the allowed calls were the same, the next one's beginning trips."""
    assert tripped_at([("ls", arguments)] * 10) == 5
    assert tripped_at([("ls", arguments)] * 4) is None


@pytest.mark.parametrize(
    "calls",
    [
        [("ls", "{}"), ("cat", "{}")] * 50,
        [("ls", f'{{"page": {page}}}') for page in range(50)],
        [("ls", ""), ("", "ls")] * 50,
        [*[("ls", "")] * 3, ("cat", "")] * 20,
    ],
)
def test_other_calls_pass(calls: list[Call]) -> None:
    """Calls that differ from the one before begin the count anew."""
    assert tripped_at(calls) is None


def test_arguments_in_turns_are_not_empty_calls() -> None:
    """Calls whose arguments come after all of them have begun are not taken for empty ones."""
    rule = CallsRule(3)
    tripped = False
    for _ in range(20):
        for call in range(3):
            tripped = rule.begin("read", call) or tripped
        for call in range(3):
            rule.feed(f'{{"n": {call}}}', call)
    assert not tripped


def test_the_detector_trips_on_calls() -> None:
    """A detector that watches calls alone trips in the choice that repeats one, and is final."""
    detector = Detector(Detection(CHANNELS, None, max_identical_calls=2))
    for call in range(3):
        for choice in range(2):
            assert detector.begin_call("ls", choice, call) is None
            detector.feed("arguments", '{"a": 1} ' if choice else f"{call} ", choice, call)
    assert detector.begin_call("ls", 0, 3) is None
    trip = detector.begin_call("ls", 1, 3)
    assert trip is not None
    assert (trip.rule, trip.channel, trip.choice) == ("calls", "arguments", 1)
    assert (trip.words, trip.chars) == (9, 33)
    assert trip.sentence.startswith("3 identical calls of a tool in a row, 9 words into the reply")
    assert detector.begin_call("cat", 0, 4) == trip
    assert detector.feed("content", "word ") == trip


def test_a_detector_without_the_knob_counts_no_calls() -> None:
    """Where the knob is 0, calls may repeat."""
    detector = Detector(Detection(CHANNELS, None))
    assert not any(detector.begin_call("ls", 0, call) for call in range(1000))
    assert describe(Detection(CHANNELS, None)) is None


def test_the_launch_sentence_names_the_knob() -> None:
    """What is armed is said."""
    sentence = describe(Detection(CHANNELS, None, max_identical_calls=16))
    assert sentence is not None
    assert sentence.endswith("once it makes more than 16 identical calls of a tool in a row")
