"""The Detector: text in, verdict out, one state for each choice, channel and tool call.

A verdict is reached at a character of the text and does not depend on the pieces that the text came
in. Where two rules would trip inside one piece, the earlier character decides; at the same
character the frequency rule speaks before the length backstop. A trip is absorbing: the detector
has one verdict for one reply, and a further attempt gets a detector of its own.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from loopguard.core.detection.frequency import FrequencyKnobs, FrequencyRule
from loopguard.core.detection.length import chars_until_passed
from loopguard.core.detection.words import WordSplitter, chars_until
from loopguard.core.events import Channel

Rule: TypeAlias = Literal["frequency", "length", "upstream"]
"""What tripped; ``upstream`` is a verdict that the provider sent ready-made."""


@dataclass(frozen=True, slots=True)
class Detection:
    """What a profile arms.

    Attributes:
        channels: the channels that a profile watches. The frequency rule and the length backstop
            are fed ``content`` alone, as the document says.
        frequency: the frequency rule and the length backstop; None where disarmed.
    """

    channels: tuple[Channel, ...]
    frequency: FrequencyKnobs | None

    @property
    def armed(self) -> bool:
        """Whether any rule is armed."""
        return self.frequency is not None


DISARMED = Detection(channels=(), frequency=None)


@dataclass(frozen=True, slots=True)
class Trip:
    """The verdict that a reply is looping, and where it was reached.

    Attributes:
        rule: which rule tripped.
        channel: where.
        choice: index of the choice.
        words: words read on that channel at the verdict.
        chars: characters read on that channel at the verdict.
        seen: what the rule saw, the first clause of the sentence.
    """

    rule: Rule
    channel: Channel
    choice: int
    words: int
    chars: int
    seen: str

    @property
    def sentence(self) -> str:
        """The trip in the document's words."""
        return (
            f"{self.seen}, {self.words} words into the reply ({self.words} words, "
            f"{self.chars} characters read before it was abandoned)"
        )

    def __str__(self) -> str:
        return self.sentence


def describe(detection: Detection) -> str | None:
    """The launch sentence of what is armed, in the document's words; None where nothing is."""
    knobs = detection.frequency
    if knobs is None:
        return None
    frequency = (
        f"after {knobs.min_saturated_run} consecutive words during which {knobs.min_offenders} or "
        f"more words have each occurred more than {knobs.repeat_threshold} times in the last "
        f"{knobs.window_words}"
    )
    backstop = (
        f", or once it passes {knobs.max_response_chars} characters"
        if knobs.max_response_chars
        else ""
    )
    return f"loop detection: armed — a reply is abandoned {frequency}{backstop}"


class _Verdict(NamedTuple):
    rule: Rule
    seen: str


class _Reading:
    """What has been read on one channel of one choice, and the rules that watch it."""

    __slots__ = ("_frequency", "_max_chars", "_splitter", "chars")

    def __init__(self, frequency: FrequencyKnobs | None) -> None:
        self._splitter = WordSplitter()
        self._frequency = None if frequency is None else FrequencyRule(frequency)
        self._max_chars = 0 if frequency is None else frequency.max_response_chars
        self.chars = 0

    @property
    def words(self) -> int:
        return self._splitter.count

    @property
    def suspected(self) -> bool:
        return self._frequency is not None and self._frequency.suspected

    def feed(self, text: str) -> _Verdict | None:
        """Read on, no further than the character of the verdict."""
        verdict = None
        passed = chars_until_passed(self._max_chars, self.chars, len(text))
        if passed is not None:
            text = text[:passed]
            verdict = _Verdict("length", f"more than {self._max_chars} characters written")
        splitter = self._splitter
        pending, count = splitter.pending, splitter.count
        words = splitter.feed(text)
        rule = self._frequency
        if rule is not None and words:
            taken = rule.feed(words)
            if taken is not None:
                text = text[: chars_until(pending, text, taken)]
                splitter.count = count + taken
                verdict = _Verdict(
                    "frequency",
                    f"{rule.offenders} words repeated across {rule.run} consecutive words",
                )
        self.chars += len(text)
        return verdict


class Detector:
    """Watches one attempt's reply.

    Nothing is allocated for a channel until text arrives on it, and a disarmed detector reads
    nothing at all.
    """

    __slots__ = ("_detection", "_readings", "_trip")

    def __init__(self, detection: Detection) -> None:
        self._detection = detection
        self._readings: dict[tuple[Channel, int, int], _Reading] = {}
        self._trip: Trip | None = None

    @property
    def words(self) -> int:
        """Words read on all channels, up to the trip; 0 where nothing is armed."""
        return sum(reading.words for reading in self._readings.values())

    @property
    def chars(self) -> int:
        """Characters read on all channels, up to the trip; 0 where nothing is armed."""
        return sum(reading.chars for reading in self._readings.values())

    @property
    def suspected(self) -> bool:
        """Whether a trip may be near: ``live`` holds deltas back meanwhile."""
        return any(reading.suspected for reading in self._readings.values())

    def feed(self, channel: Channel, text: str, choice: int = 0, call: int = 0) -> Trip | None:
        """Read the next piece of one channel of the reply.

        Args:
            channel: where the model wrote it.
            text: the piece, of any length.
            choice: index of the choice.
            call: index of the tool call, on channel ``arguments``.

        Returns:
            The trip, from the piece that holds its character on and for ever after; else None.
        """
        if self._trip is not None or not text:
            return self._trip
        key = (channel, choice, call)
        reading = self._readings.get(key)
        if reading is None:
            if not self._detection.armed:
                return None
            watched = channel == "content"
            reading = _Reading(self._detection.frequency if watched else None)
            self._readings[key] = reading
        verdict = reading.feed(text)
        if verdict is not None:
            rule, seen = verdict
            self._trip = Trip(rule, channel, choice, reading.words, reading.chars, seen)
        return self._trip
