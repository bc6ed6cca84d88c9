"""The Detector: text in, verdict out, one state for each choice, channel and tool call.

A verdict is reached at a character of the text and does not depend on the pieces that the text came
in. Where two rules would trip inside one piece, the earlier character decides; at the same
character the frequency rule speaks first, the length backstop last. Of a tool call's arguments the
unescaped text is read, and counted. A trip is absorbing: the detector has one verdict for one
reply, and a further attempt gets a detector of its own.
"""

from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeAlias

from loopguard.core.detection.arguments import ArgumentsText
from loopguard.core.detection.calls import CallsRule
from loopguard.core.detection.fingerprint import Fingerprint
from loopguard.core.detection.frequency import FrequencyKnobs, FrequencyRule
from loopguard.core.detection.length import chars_until_passed
from loopguard.core.detection.stretch import BLOCK_CHARS, Copied, StretchKnobs, StretchRule
from loopguard.core.detection.words import WordSplitter, chars_until
from loopguard.core.events import READY_VERDICTS, Channel

Rule: TypeAlias = Literal["frequency", "stretch", "calls", "length", "upstream"]
"""What tripped; ``upstream`` is a verdict that the provider sent ready-made."""

MAX_FLOOR_FACTOR = 10.0
"""Requested repetition may be ten times as long as any other; a count that was misread in the
request must not switch the guard off."""


@dataclass(frozen=True, slots=True)
class Detection:
    """What a profile arms.

    Attributes:
        channels: the channels that the stretch rule watches. The frequency rule and the length
            backstop are fed ``content`` alone, as the document says.
        frequency: the frequency rule and the length backstop; None where disarmed.
        stretch: the stretch rule; None where disarmed.
        max_identical_calls: the calls rule's knob; 0 where disarmed.
    """

    channels: tuple[Channel, ...]
    frequency: FrequencyKnobs | None
    stretch: StretchKnobs | None = None
    max_identical_calls: int = 0

    @property
    def armed(self) -> bool:
        """Whether any rule is armed."""
        rules = (self.frequency, self.stretch)
        return any(rule is not None for rule in rules) or self.max_identical_calls > 0


_MAX_CALLS = 8
"""Tool calls of one reply that are read at once. Calls come one after another, and few providers
write some in turns; a reply may hold thousands, and each that is read costs up to 110 KiB."""

_MAX_READINGS = 2 * 128 + _MAX_CALLS
"""What is read of one reply: the answer and the thinking of the first choices, as many as OpenAI
gives (``n``), and the calls. What an upstream numbers beyond that would take memory without end."""


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
        onset_char: about where on that channel the loop began; None where the rule does not say.
        period_chars: the period of what repeated; None where it has none or the rule does not say.
        sample: what repeated, bounded. It is text of the reply: only for an operator who allowed
            it, and never part of the sentence or of ``repr``.
    """

    rule: Rule
    channel: Channel
    choice: int
    words: int
    chars: int
    seen: str
    onset_char: int | None = None
    period_chars: int | None = None
    sample: str = field(default="", repr=False)

    @property
    def sentence(self) -> str:
        """The trip in the document's words."""
        return (
            f"{self.seen}, {self.words} words into the reply ({self.words} words, "
            f"{self.chars} characters read before it was abandoned)"
        )

    def __str__(self) -> str:
        return self.sentence


class Level(NamedTuple):
    """How near a rule is to its floor, in the rule's own unit.

    Attributes:
        now: where it stands, on the channel that is nearest.
        peak: the highest it stood there.
        floor: where it trips.
    """

    now: float
    peak: float
    floor: float


def describe(detection: Detection) -> str | None:
    """The launch sentence of what is armed, in the document's words; None where nothing is."""
    clauses = []
    knobs = detection.frequency
    if knobs is not None:
        clauses.append(
            f"after {knobs.min_saturated_run} consecutive words during which "
            f"{knobs.min_offenders} or more words have each occurred more than "
            f"{knobs.repeat_threshold} times in the last {knobs.window_words}"
        )
        if knobs.max_response_chars:
            clauses.append(f"once it passes {knobs.max_response_chars} characters")
    if detection.stretch is not None:
        clauses.append(
            f"once it has said nothing new for {detection.stretch.min_stale_chars} characters of "
            "prose or their weight in other text"
        )
    if detection.max_identical_calls:
        clauses.append(
            f"once it makes more than {detection.max_identical_calls} identical calls of a tool in "
            "a row"
        )
    if not clauses:
        return None
    return "loop detection: armed \u2014 a reply is abandoned " + ", or ".join(clauses)


class _Verdict(NamedTuple):
    rule: Rule
    seen: str
    copied: Copied | None = None


class _Reading:
    """What has been read on one channel of one choice, and the rules that watch it.

    Deltas are a few characters each, and the rules cost more by the call than by the character. So
    text waits until a rule can trip: until there is one character for each word that the frequency
    rule's run lacks, the one that passes the ceiling, or the last of a block of the stretch rule.

    Attributes:
        suspected: whether a trip may be near, as far as the text has been judged.
    """

    __slots__ = (
        "_fingerprint",
        "_frequency",
        "_judged_chars",
        "_max_chars",
        "_patience_chars",
        "_splitter",
        "_stretch",
        "_unescaped",
        "_waiting",
        "suspected",
    )

    def __init__(self, channel: Channel, detection: Detection, floor_factor: float) -> None:
        self._splitter = WordSplitter()
        self._unescaped = ArgumentsText() if channel == "arguments" else None
        self._frequency: FrequencyRule | None = None
        self._stretch: StretchRule | None = None
        self._max_chars = 0
        self._waiting = ""
        self._judged_chars = 0
        self._fingerprint = Fingerprint()
        self.suspected = False
        frequency, stretch = detection.frequency, detection.stretch
        if frequency is not None and channel == "content":
            run = round(frequency.min_saturated_run * floor_factor)
            self._frequency = FrequencyRule(replace(frequency, min_saturated_run=run))
            self._max_chars = frequency.max_response_chars
        if stretch is not None and channel in detection.channels:
            self._stretch = StretchRule(stretch, floor_factor)
        self._patience_chars = self._chars_to_trip()

    @property
    def chars(self) -> int:
        return self._judged_chars + len(self._waiting)

    @property
    def words(self) -> int:
        self.judge()
        return self._splitter.count

    def fingerprint(self) -> bytes | None:
        self.judge()
        return self._fingerprint.digest()

    def levels(self) -> dict[Rule, Level]:
        """As far as the text has been judged."""
        levels: dict[Rule, Level] = {}
        if self._frequency is not None:
            rule = self._frequency
            levels["frequency"] = Level(rule.run, rule.peak_run, rule.floor)
        if self._stretch is not None:
            levels["stretch"] = Level(self._stretch.level, self._stretch.peak, self._stretch.floor)
        if self._max_chars:
            levels["length"] = Level(self.chars, self.chars, self._max_chars + 1)
        return levels

    def feed(self, text: str) -> _Verdict | None:
        """Read on, no further than the character of the verdict."""
        if self._unescaped is not None:
            text = self._unescaped.feed(text)
        waiting = self._waiting = self._waiting + text
        return self.judge() if len(waiting) >= self._patience_chars else None

    def _chars_to_trip(self) -> int:
        """After how many further characters a rule can trip, at the earliest."""
        chars = BLOCK_CHARS - self._judged_chars % BLOCK_CHARS
        if self._max_chars:
            chars = min(chars, self._max_chars + 1 - self._judged_chars)
        if self._frequency is not None:
            chars = min(chars, self._frequency.floor - self._frequency.run)
        return chars

    def judge(self) -> _Verdict | None:
        """Let the rules read what waits, which holds a verdict only where patience has ended."""
        verdict = None
        text, self._waiting = self._waiting, ""
        passed = chars_until_passed(self._max_chars, self._judged_chars, len(text))
        if passed is not None:
            text = text[:passed]
            verdict = _Verdict("length", f"more than {self._max_chars} characters written")
        if self._stretch is not None:
            stale = self._stretch.feed(text)
            if stale is not None:
                text = text[:stale]
                copied = self._stretch.copied()
                verdict = _Verdict("stretch", _tell(copied, self._judged_chars + stale), copied)
        splitter = self._splitter
        pending, count = splitter.pending, splitter.count
        words = splitter.feed(text)
        if self._frequency is not None and words:
            rule = self._frequency
            taken = rule.feed(words)
            if taken is not None:
                text = text[: chars_until(pending, text, taken)]
                splitter.count = count + taken
                verdict = _Verdict(
                    "frequency",
                    f"{rule.offenders} words repeated across {rule.run} consecutive words",
                )
        self._judged_chars += len(text)
        self._fingerprint.feed(text)
        self._patience_chars = self._chars_to_trip()
        self.suspected = (self._stretch is not None and self._stretch.suspected) or (
            self._frequency is not None and self._frequency.suspected
        )
        return verdict


def _tell(copied: Copied, chars: int) -> str:
    """What the stretch rule saw, when it tripped at that character."""
    seen = f"nothing new said in {copied.stale_chars} characters"
    if copied.period_chars is not None:
        rounds = (chars - copied.onset_char) // copied.period_chars
        seen += f" ({rounds} rounds of {copied.period_chars} characters)"
    return seen


class Detector:
    """Watches one attempt's reply.

    Nothing is allocated for a channel until text arrives on it, and a disarmed detector reads
    nothing at all.

    Args:
        detection: what is armed.
        floor_factor: how many times as much repetition the request asks for as the rules allow by
            themselves; at most ``MAX_FLOOR_FACTOR`` is granted. The length backstop stays.
    """

    __slots__ = ("_calls", "_chars", "_detection", "_floor_factor", "_readings", "_trip", "_words")

    def __init__(self, detection: Detection, floor_factor: float = 1.0) -> None:
        self._detection = detection
        self._floor_factor = min(floor_factor, MAX_FLOOR_FACTOR)
        self._readings: dict[tuple[Channel, int, int], _Reading] = {}
        self._calls: dict[int, CallsRule] = {}
        self._trip: Trip | None = None
        # Of tool calls that are read no more.
        self._words = 0
        self._chars = 0

    @property
    def words(self) -> int:
        """Words read on all channels, up to the trip; 0 where nothing is armed."""
        return self._words + sum(reading.words for reading in self._readings.values())

    @property
    def chars(self) -> int:
        """Characters read on all channels, up to the trip; 0 where nothing is armed."""
        return self._chars + sum(reading.chars for reading in self._readings.values())

    @property
    def suspected(self) -> bool:
        """Whether a trip may be near: ``live`` holds deltas back meanwhile."""
        for reading in self._readings.values():  # noqa: SIM110 - any() would cost thrice as much
            if reading.suspected:
                return True
        return False

    def fingerprint(self) -> bytes | None:
        """The reply's own, as far as it was read; None where no channel of it has one."""
        digests = [reading.fingerprint() for reading in self._readings.values()]
        if not any(digests):
            return None
        return b"".join(digest or b"" for digest in digests)

    def levels(self) -> dict[Rule, Level]:
        """Each armed rule that has read something, and how near it is to its floor."""
        for reading in self._readings.values():
            reading.judge()
        return self.judged_levels()

    def judged_levels(self) -> dict[Rule, Level]:
        """The same as far as the text has been judged, which costs the reply nothing."""
        levels: dict[Rule, Level] = {}
        for reading in self._readings.values():
            for rule, level in reading.levels().items():
                if rule not in levels or level.now > levels[rule].now:
                    levels[rule] = level
        if self._calls:
            # How many there were in a row before is not kept.
            run = max(calls.run for calls in self._calls.values())
            levels["calls"] = Level(run, run, self._detection.max_identical_calls + 1)
        return levels

    def begin_call(self, name: str, choice: int = 0, call: int = 0) -> Trip | None:
        """Read the beginning of a tool call.

        Args:
            name: of the tool.
            choice: index of the choice.
            call: index of the call.

        Returns:
            The trip, as `feed` does.
        """
        limit = self._detection.max_identical_calls
        if self._trip is not None or not limit:
            return self._trip
        rule = self._calls.get(choice)
        if rule is None:
            if len(self._calls) >= _MAX_READINGS:
                return None
            rule = self._calls[choice] = CallsRule(limit)
        if rule.begin(name, call):
            seen = f"{rule.run} identical calls of a tool in a row"
            self._trip = Trip("calls", "arguments", choice, self.words, self.chars, seen)
        return self._trip

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
        if channel == "arguments" and choice in self._calls:
            self._calls[choice].feed(text, call)
        key = (channel, choice, call)
        reading = self._readings.get(key)
        if reading is None:
            if not self._detection.armed:
                return None
            if channel == "arguments":
                self._end_oldest_call()
            elif len(self._readings) >= _MAX_READINGS:
                return None
            reading = _Reading(channel, self._detection, self._floor_factor)
            self._readings[key] = reading
        verdict = reading.feed(text)
        if verdict is not None:
            rule, seen, copied = verdict
            self._trip = Trip(
                rule,
                channel,
                choice,
                reading.words,
                reading.chars,
                seen,
                None if copied is None else copied.onset_char,
                None if copied is None else copied.period_chars,
                "" if copied is None else copied.sample,
            )
        return self._trip

    def _end_oldest_call(self) -> None:
        """Make room for another tool call."""
        calls = [key for key in self._readings if key[0] == "arguments"]
        if len(calls) >= _MAX_CALLS:
            ended = self._readings.pop(calls[0])
            self._words += ended.words
            self._chars += ended.chars

    def take_verdict(self, reason: str, choice: int = 0) -> Trip | None:
        """Trip on the provider's own word that the model looped.

        Args:
            reason: the finish reason; it says so where it is one of `READY_VERDICTS`.
            choice: index of the choice.

        Returns:
            The trip, as `feed` does.
        """
        if self._trip is None and self._detection.armed and reason in READY_VERDICTS:
            seen = f"the provider finished it as `{reason}`"
            self._trip = Trip("upstream", "content", choice, self.words, self.chars, seen)
        return self._trip
