"""The frequency rule: a few words fill the window, and go on filling it.

Theory (the loop-detection document, "The rule"). A word is an *offender* while it stands more than
``repeat_threshold`` times among the last ``window_words`` words. The window is *saturated* while it
holds at least ``min_offenders`` distinct offenders: one common word is ordinary text, a repeated
phrase is more than one word. The rule trips when ``min_saturated_run`` consecutive words have
arrived while the window was saturated, because a literal of data ends and a loop does not.

Per word, in this order: count it in, evict the oldest beyond the window, judge saturation, extend
or reset the run; trip when the window is saturated, the run is long enough and the window is full.
The window fills while the run already counts.

Blind spots, with the document's figures:

* A period of 8 or more distinct words: 256 / 8 = 32, and an offender stands *more* than 32 times.
* A loop of one word, or one that never writes a second: one offender is not two.
* A flood of whitespace has no words.
* A loop without whitespace is cut every 128 characters. Where the period divides 128, all slices
  are alike: one offender. Where it does not, its distinct slices offend only when there are two to
  seven of them, and the run of 3,000 slices then takes about 396,000 characters: the length
  backstop at 250,000 comes first, though the document calls such a loop detectable. It is when the
  backstop is off or far higher.
* A literal of few distinct values and more than 3,000 entries is taken for a loop: a tilemap of
  64 x 64 trips, one of 47 x 32 (1,504 entries) does not.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FrequencyKnobs:
    """The five figures of an armed detector, under the document's names.

    Attributes:
        window_words: the lookback, and the minimum sample: nothing trips before it is full.
        repeat_threshold: occurrences in the window above which a word offends.
        min_offenders: distinct offenders that make the window saturated.
        min_saturated_run: consecutive words that must arrive while it is saturated; 0 trips as soon
            as the window is both full and saturated.
        max_response_chars: the length backstop; 0 turns it off.
    """

    window_words: int
    repeat_threshold: int
    min_offenders: int
    min_saturated_run: int
    max_response_chars: int


class FrequencyRule:
    """Watches the words of one channel.

    Memory is the hashes of the window, at most 44 bytes each, and a counter for each of the
    at most ``window_words`` distinct words in it. The cost of a word is constant.

    Attributes:
        offenders: distinct words that offend in the window as it is.
        run: length of the saturated run so far, in words.
    """

    __slots__ = ("_counts", "_knobs", "_next", "_peak", "_window", "offenders", "run")

    def __init__(self, knobs: FrequencyKnobs) -> None:
        self._knobs = knobs
        self._window: list[int] = []
        self._next = 0
        self._counts: dict[int, int] = {}
        self._peak = 0
        self.offenders = 0
        self.run = 0

    @property
    def floor(self) -> int:
        """The saturated run at which the rule trips, in words; a run is never shorter than one."""
        return max(1, self._knobs.min_saturated_run)

    @property
    def peak_run(self) -> int:
        """The longest saturated run so far, in words."""
        return max(self._peak, self.run)

    @property
    def suspected(self) -> bool:
        """Whether the window is saturated and stays so.

        True once the saturated run is as long as the window, so that every word of the window
        arrived while it was saturated: a shared prefix in a list passes, a literal or a loop
        remains. Half the floor where that is less, since the trip would come first otherwise.
        """
        return self.run > 0 and self.run >= min(
            self._knobs.window_words, self._knobs.min_saturated_run // 2
        )

    def feed(self, words: list[str]) -> int | None:
        """Take the next words; how many of them it took to trip, or None.

        After a trip the rule must not be fed again.
        """
        knobs = self._knobs
        size, threshold = knobs.window_words, knobs.repeat_threshold
        breadth, floor = knobs.min_offenders, knobs.min_saturated_run
        window, counts = self._window, self._counts
        offenders, run, oldest = self.offenders, self.run, self._next
        full = len(window) == size
        tripped = False
        taken = 0
        for taken, new in enumerate(map(hash, words), 1):  # noqa: B007 - used after the loop
            count = counts.get(new, 0) + 1
            counts[new] = count
            if count == threshold + 1:
                offenders += 1
            if not full:
                window.append(new)
                full = len(window) == size
            else:
                old = window[oldest]
                window[oldest] = new
                oldest = oldest + 1 if oldest + 1 < size else 0
                count = counts[old] - 1
                if count:
                    counts[old] = count
                else:
                    del counts[old]
                if count == threshold:
                    offenders -= 1
            if offenders >= breadth:
                run += 1
                if run >= floor and full:
                    tripped = True
                    break
            elif run:
                self._peak = max(self._peak, run)
                run = 0
        self.offenders, self.run, self._next = offenders, run, oldest
        return taken if tripped else None
