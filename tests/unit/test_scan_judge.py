"""A saved reply gets the verdict that the proxy's detector gives it."""

import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest

from loopguard.core.detection.detector import Detection, Detector, Level, Trip
from loopguard.core.detection.frequency import FrequencyKnobs
from loopguard.core.detection.stretch import StretchKnobs
from loopguard.core.detection.words import WordSplitter
from loopguard.core.events import (
    CHANNELS,
    ArgumentsDelta,
    Done,
    Event,
    Finish,
    ReasoningDelta,
    TextDelta,
)
from loopguard.scan import parallel
from loopguard.scan.judge import MAX_POINTS, Judged, judge
from loopguard.scan.parallel import judge_all
from loopguard.scan.saved import Saved, Unreadable

DOCUMENT = Detection(CHANNELS, FrequencyKnobs(256, 32, 2, 3000, 250_000))
SHIPPED = replace(DOCUMENT, stretch=StretchKnobs(2400, 12, 0.4, 0.12))
SENTENCE = "Now I run it and look at the result.\n"


def novel(words: int) -> str:
    """Text that says something new with every word."""
    draw = random.Random(words)
    return " ".join("".join(draw.choices("abcdefghijklmnop", k=7)) for _ in range(words))


TEXTS = {
    "empty": "",
    "short": "Hello there.",
    "void": "void 0; " * 2000,
    "sentence": "A word before it all. " + SENTENCE * 300,
    "chinese": "\u4f60\u597d\u3002\u4e16\u754c\u4eca\u5929" * 900,
    "newlines": "\n" * 30_000,
    "left alone": "It begins. " + SENTENCE * 30 + novel(900),
    "long": novel(32_000),
}


def fed_directly(detector: Detector, events: Iterable[Event]) -> Trip | None:
    """What the proxy does with a reply."""
    trip = None
    for event in events:
        match event:
            case TextDelta(text, choice):
                trip = detector.feed("content", text, choice)
            case ReasoningDelta(text, choice):
                trip = detector.feed("reasoning", text, choice)
            case ArgumentsDelta(text, choice, call):
                trip = detector.feed("arguments", text, choice, call)
            case Finish(reason, choice) if reason == "repetition":
                trip = detector.take_verdict(reason, choice)
    return trip


def in_deltas(text: str, seed: int) -> Iterator[TextDelta]:
    draw = random.Random(seed)
    at = 0
    while at < len(text):
        size = draw.choice((1, 3, 7, 300, 5000))
        yield TextDelta(text[at : at + size])
        at += size


@pytest.mark.parametrize("detection", [DOCUMENT, SHIPPED], ids=["document", "shipped"])
@pytest.mark.parametrize("name", TEXTS)
def test_the_verdict_is_the_detectors(name: str, detection: Detection) -> None:
    """Whatever the pieces, verdict, levels and peaks are those of the detector fed directly."""
    detector = Detector(detection)
    trip = fed_directly(detector, [TextDelta(TEXTS[name])])
    words = WordSplitter()
    words.feed(TEXTS[name])
    for seed in range(3):
        judged = judge(name, in_deltas(TEXTS[name], seed), detection)
        assert judged.trip == trip
        assert judged.peaks == detector.levels()
        assert judged.chars == len(TEXTS[name])
        assert judged.words == words.count


def test_channels_are_judged_as_the_detector_does() -> None:
    """Deltas of several choices, channels and calls, mixed, give the detector's verdict."""
    arguments = json.dumps({"text": SENTENCE * 200})
    places = [[TextDelta(f"word {n} and on ", choice) for n in range(500)] for choice in (0, 1)]
    places.append([ReasoningDelta(f"I think about {n} a bit. ") for n in range(500)])
    for call in (0, 1):
        pieces = [arguments[at : at + 5] for at in range(0, len(arguments), 5)]
        places.append([ArgumentsDelta(piece, 0, call) for piece in pieces])
    draw = random.Random(5)
    events = []
    while any(places):
        events.append(draw.choice([place for place in places if place]).pop(0))
    detector = Detector(SHIPPED)
    trip = fed_directly(detector, events)
    judged = judge("x", events, SHIPPED)
    assert trip is not None
    assert trip.channel == "arguments"
    assert judged.trip == trip
    assert judged.place in {("arguments", 0, 0), ("arguments", 0, 1)}
    assert judged.peaks == detector.levels()
    assert len(judged.curves) == 5


def test_a_ready_verdict_is_a_trip() -> None:
    """A provider's own verdict trips as it does in the proxy, on all that was read."""
    events = [ReasoningDelta("so so "), TextDelta("and so "), Finish("repetition"), Done()]
    trip = fed_directly(Detector(SHIPPED), events)
    judged = judge("x", events, SHIPPED)
    # One detector counts what all of the reply's channels read.
    assert trip is not None
    assert judged.trip == trip
    assert (judged.trip.words, judged.trip.chars) == (4, 13)
    assert judge("x", [TextDelta("a"), Finish("stop")], SHIPPED).trip is None


def test_what_follows_a_trip_is_counted() -> None:
    """Characters and words are those of the whole reply, peaks and curve end at the trip."""
    judged = judge("x", [TextDelta("void 0; " * 2000), ReasoningDelta("and on ")], DOCUMENT)
    assert (judged.chars, judged.words) == (16_007, 4_002)
    assert judged.trip is not None
    assert judged.trip.chars == 12_261
    assert judged.peaks["frequency"] == Level(3000, 3000, 3000)
    assert judged.curves[0].chars[-1] == 12_261


def test_the_figures_have_their_names() -> None:
    """A reply's figures are the ten that the command promises, in that order."""
    judged = judge("x", [TextDelta("void 0; " * 2000)], DOCUMENT)
    assert list(judged.figures().items()) == [
        ("id", "x"),
        ("chars", 16_000),
        ("words", 4000),
        ("tripped", True),
        ("rule", "frequency"),
        ("at_char", 12_261),
        ("at_word", 3065),
        ("onset_char", None),
        ("period_chars", 8),
        (
            "peaks",
            {
                "frequency": {"peak": 3000, "floor": 3000},
                "length": {"peak": 12_261, "floor": 250_001},
            },
        ),
    ]
    passed = judge("y", [TextDelta("void 0; ")], DOCUMENT).figures()
    assert [passed[key] for key in ("tripped", "rule", "at_char", "at_word")] == [
        False,
        None,
        None,
        None,
    ]


@pytest.mark.parametrize("size", [1, 200, 20_000])
def test_what_repeated_is_shown(size: int) -> None:
    """A trip shows a round and its period, whichever rule tripped, as it stood at the trip."""
    text = "It began well. " + "all of it again " * 3000 + "and then a novel end " * 500
    for detection in (DOCUMENT, SHIPPED):
        pieces = [TextDelta(text[at : at + size]) for at in range(0, len(text), size)]
        judged = judge("x", pieces, detection)
        assert judged.trip is not None
        assert judged.period_chars == 16
        assert judged.excerpt in "all of it again " * 2
        assert len(judged.excerpt) == 16


def test_a_trip_without_a_period_shows_its_text() -> None:
    """Where nothing repeats, or hardly anything was read, the text at the trip is shown."""
    judged = judge("x", [TextDelta(TEXTS["long"])], DOCUMENT)
    assert judged.trip is not None
    assert (judged.trip.rule, judged.period_chars) == ("length", None)
    assert judged.excerpt == TEXTS["long"][250_001 - 200 : 250_001]
    judged = judge("x", [TextDelta("so so "), Finish("repetition")], DOCUMENT)
    assert (judged.period_chars, judged.excerpt) == (None, "so so ")
    assert judge("x", [Finish("repetition")], DOCUMENT).excerpt == ""


def test_a_reply_that_passed_shows_where_it_came_nearest() -> None:
    """The text at the highest level is shown, of the channel that came nearest."""
    judged = judge("x", [ReasoningDelta("Well."), TextDelta(TEXTS["left alone"])], SHIPPED)
    assert judged.trip is None
    assert judged.peaks["stretch"].peak > 500
    assert "look at the result." in judged.excerpt
    assert len(judged.excerpt) == 200


def test_a_curve_is_bounded_and_keeps_its_peak() -> None:
    """However long the reply, its curve has few points, from beginning to end, and its peak."""
    unwatched = replace(SHIPPED, stretch=replace(SHIPPED.stretch, min_stale_chars=10**9))  # type: ignore[type-var]  # it is armed
    unwatched = replace(unwatched, frequency=None)
    text = novel(32_000)
    text = text[:100_000] + SENTENCE * 100 + text[100_000:]
    (curve,) = judge("x", [TextDelta(text)], unwatched).curves
    assert MAX_POINTS <= len(curve.chars) <= 2 * MAX_POINTS
    assert curve.chars == sorted(set(curve.chars))
    assert curve.chars[-1] == len(text)
    assert len(curve.levels["stretch"]) == len(curve.chars)
    peak = max(curve.levels["stretch"])
    assert peak == curve.peaks["stretch"].peak > 3000
    assert 100_000 < curve.chars[curve.levels["stretch"].index(peak)] < 106_000


def replies() -> Iterator[Saved | Unreadable]:
    for round_ in range(4):
        for name, text in TEXTS.items():
            yield Saved(f"{name} {round_}", in_deltas(text, round_))
        yield Unreadable(f"x:{round_}: no JSON")


def failing() -> Iterator[Event]:
    yield TextDelta("so far so good")
    raise Unreadable("x:1: not UTF-8")


def told(results: Iterable[Judged | Unreadable]) -> list[object]:
    return [str(one) if isinstance(one, Unreadable) else one for one in results]


@pytest.mark.parametrize("batch_chars", [1000, 100_000])
def test_processes_change_nothing(batch_chars: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes give the results of one in the same order, long replies and faults too."""
    monkeypatch.setattr(parallel, "_BATCH_CHARS", batch_chars)
    assert told(judge_all(replies(), SHIPPED, 2)) == told(judge_all(replies(), SHIPPED, 1))


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_reply_that_breaks_off_is_told(jobs: int) -> None:
    """A reply that cannot be read to its end has no verdict, and the next one has its own."""
    both = [Saved("x", failing()), Saved("y", [TextDelta("fine")])]
    broken, fine = judge_all(both, SHIPPED, jobs)
    assert str(broken) == "x:1: not UTF-8"
    assert isinstance(fine, Judged)
    assert fine.chars == 4
