"""What the detector makes of one saved reply, and how near each rule came to its floor.

The channels of a reply are read independently of each other, so each choice, channel and call gets
a `Detector` of its own here, whose levels are then those of that place alone. The first trip is the
one that a single detector would have had. From there on nothing is judged: a level, a peak and a
curve go to the trip and no further, since the reply would have been abandoned there. Characters and
words are counted to the reply's end.

A curve has a point every 256 characters. When it has too many, each two become one that keeps the
higher level, so that its memory is bounded and no peak is lost.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from loopguard.core.detection.arguments import ArgumentsText
from loopguard.core.detection.detector import Detection, Detector, Level, Rule, Trip
from loopguard.core.detection.stretch import (
    BLOCK_CHARS,
    SAMPLE_CHARS,
    Copied,
    StretchKnobs,
    StretchRule,
)
from loopguard.core.detection.words import WordSplitter
from loopguard.core.events import (
    READY_VERDICTS,
    ArgumentsDelta,
    Channel,
    Event,
    Finish,
    ReasoningDelta,
    TextDelta,
)

MAX_POINTS = 400
"""A curve is some 600 pixels wide."""

_KEPT_CHARS = 8192
"""The end of the text in which a period is looked for, as the stretch rule does."""

_NEVER = StretchKnobs(
    min_stale_chars=2**32, novelty_cost_chars=0, structure_weight=0, data_weight=0
)

Place: TypeAlias = tuple[Channel, int, int]
"""Channel, index of the choice, index of the tool call."""


@dataclass(frozen=True, slots=True)
class Curve:
    """How each rule's level went, at one place of a reply.

    Attributes:
        place: where.
        chars: characters read there, at each point.
        levels: of each rule that read there, as many as there are points.
        peaks: of each of them, which may lie between two points.
    """

    place: Place
    chars: list[int]
    levels: dict[Rule, list[float]]
    peaks: dict[Rule, Level]


@dataclass(frozen=True, slots=True)
class Judged:
    """One reply and its verdict.

    Attributes:
        id: what it is called.
        chars: characters of the whole reply, those behind the trip included; of arguments the
            unescaped text counts.
        words: words of the whole reply.
        trip: the verdict; None where it passed.
        place: where it tripped.
        period_chars: the period of what repeated at the trip; None where there is none.
        peaks: the highest that each rule stood, up to the trip, at the place where it stood
            highest.
        curves: one for each place.
        excerpt: what repeated, or else what was read where the reply came nearest to a trip; at
            most ``SAMPLE_CHARS`` characters, empty where no rule ever left zero.
    """

    id: str
    chars: int
    words: int
    trip: Trip | None
    place: Place | None
    period_chars: int | None
    peaks: dict[Rule, Level]
    curves: tuple[Curve, ...]
    excerpt: str

    def figures(self) -> dict[str, Any]:
        """The verdict and its figures, ready for JSON."""
        trip = self.trip
        return {
            "id": self.id,
            "chars": self.chars,
            "words": self.words,
            "tripped": trip is not None,
            "rule": trip and trip.rule,
            "at_char": trip and trip.chars,
            "at_word": trip and trip.words,
            "onset_char": trip and trip.onset_char,
            "period_chars": self.period_chars,
            "peaks": {
                rule: {"peak": round(level.peak, 2), "floor": level.floor}
                for rule, level in self.peaks.items()
            },
        }


def judge(name: str, events: Iterable[Event], detection: Detection) -> Judged:
    """Read one reply to its end.

    Args:
        name: what it is called.
        events: what came of it.
        detection: what is armed.
    """
    reply = _Reply(detection)
    for event in events:
        match event:
            case TextDelta(text, choice):
                reply.feed(("content", choice, 0), text)
            case ReasoningDelta(text, choice):
                reply.feed(("reasoning", choice, 0), text)
            case ArgumentsDelta(text, choice, call):
                reply.feed(("arguments", choice, call), text)
            case Finish(reason, choice) if reason in READY_VERDICTS:
                reply.take_verdict(reason, choice)
            case _:
                pass
    return reply.judged(name)


class _Reply:
    """A reply as it is read."""

    def __init__(self, detection: Detection) -> None:
        self._detection = detection
        self._readings: dict[Place, _Reading] = {}
        self._trip: Trip | None = None
        self._tripped: Place | None = None

    @property
    def chars(self) -> int:
        return sum(reading.chars for reading in self._readings.values())

    @property
    def words(self) -> int:
        return sum(reading.words for reading in self._readings.values())

    def feed(self, place: Place, text: str) -> None:
        reading = self._readings.get(place)
        if reading is None:
            reading = self._readings[place] = _Reading(place, self._detection)
        if self._trip is not None:
            reading.count(text)
            return
        self._trip = reading.watch(text)
        if self._trip is not None:
            self._tripped = place

    def take_verdict(self, reason: str, choice: int) -> None:
        """The provider's own word; it counts all that was read, as a `Detector` does."""
        if self._trip is not None:
            return
        trip = Detector(self._detection).take_verdict(reason, choice)
        if trip is not None:
            self._trip = replace(trip, words=self.words, chars=self.chars)
            self._tripped = (trip.channel, choice, 0)

    def judged(self, name: str) -> Judged:
        curves = tuple(reading.curve() for reading in self._readings.values())
        peaks: dict[Rule, Level] = {}
        for curve in curves:
            for rule, level in curve.peaks.items():
                if rule not in peaks or level.peak > peaks[rule].peak:
                    peaks[rule] = level
        period, excerpt = self._repeated()
        return Judged(
            name,
            self.chars,
            self.words,
            self._trip,
            self._tripped,
            period,
            peaks,
            curves,
            excerpt,
        )

    def _repeated(self) -> tuple[int | None, str]:
        """The period at the trip and a piece of what repeated; of a reply that passed the latter.

        Where the rule that tripped does not say either, the end of the text is looked at.
        """
        if self._trip is None:
            nearest = max(self._readings.values(), key=lambda it: it.nearness, default=None)
            return None, nearest.excerpt if nearest is not None else ""
        if self._trip.sample:
            return self._trip.period_chars, self._trip.sample
        reading = self._readings.get(self._tripped) if self._tripped else None
        text = reading.kept if reading is not None else ""
        copied = _copied(text)
        if copied is None or copied.period_chars is None:
            return None, text[-SAMPLE_CHARS:]
        return copied.period_chars, copied.sample


def _copied(text: str) -> Copied | None:
    """What the end of a text repeats, as the stretch rule tells it."""
    if len(text) < BLOCK_CHARS:
        return None
    rule = StretchRule(_NEVER)
    rule.feed(text[len(text) % BLOCK_CHARS :])
    return rule.copied()


class _Reading:
    """What has been read at one place.

    Attributes:
        chars: characters read.
        kept: the last text that was watched.
        nearness: the greatest share of its floor that a rule had at a point; the length backstop,
            which only grows, aside.
        excerpt: what was read last at that point.
    """

    def __init__(self, place: Place, detection: Detection) -> None:
        self._place = place
        self._detector = Detector(detection)
        self._unescaped = ArgumentsText() if place[0] == "arguments" else None
        self._splitter = WordSplitter()
        self._fed_chars = 0
        self._point_chars: list[int] = []
        self._point_levels: dict[Rule, list[float]] = {}
        self.chars = 0
        self.kept = ""
        self.nearness = 0.0
        self.excerpt = ""

    @property
    def words(self) -> int:
        return self._splitter.count

    def count(self, text: str) -> str:
        """Count a text, and return what it stands for."""
        if self._unescaped is not None:
            text = self._unescaped.feed(text)
        self.chars += len(text)
        self._splitter.feed(text)
        return text

    def watch(self, text: str) -> Trip | None:
        """Judge a text; what follows a trip is counted."""
        channel, choice, call = self._place
        at = 0
        while at < len(text):
            end = at + BLOCK_CHARS - self._fed_chars % BLOCK_CHARS
            piece = text[at:end]
            at = end
            self._fed_chars += len(piece)
            self.kept = (self.kept + self.count(piece))[-_KEPT_CHARS:]
            trip = self._detector.feed(channel, piece, choice, call)
            if trip is not None:
                self.kept = self.kept[: len(self.kept) - (self.chars - trip.chars)]
                self.count(text[at:])
                return trip
            if self._fed_chars % BLOCK_CHARS == 0:
                self._mark()
        return None

    def curve(self) -> Curve:
        """The curve up to here, or to the trip."""
        if self._point_chars[-1:] != [self._detector.chars]:
            self._mark()
        levels = self._detector.levels()
        return Curve(self._place, self._point_chars, self._point_levels, levels)

    def _mark(self) -> None:
        """Add a point to the curve."""
        self._point_chars.append(self._detector.chars)
        for rule, level in self._detector.levels().items():
            self._point_levels.setdefault(rule, []).append(level.now)
            if rule != "length" and level.now / level.floor > self.nearness:
                self.nearness = level.now / level.floor
                self.excerpt = self.kept[-SAMPLE_CHARS:]
        if len(self._point_chars) == 2 * MAX_POINTS:
            self._point_chars = self._point_chars[1::2]
            for rule, levels in self._point_levels.items():
                pairs = zip(levels[::2], levels[1::2], strict=True)
                self._point_levels[rule] = [max(pair) for pair in pairs]
