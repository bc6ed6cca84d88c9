r"""The stretch rule: the reply has stopped saying anything new.

Theory. The text is cut into pieces: a run of letters and digits with the punctuation and space that
follow it, at most to the end of its line; capped, so that text without spaces has pieces too. A
*phrase* is three pieces in a row. A phrase is *stale* when it has stood twice before, never more
than 4,096 pieces apart: a thing said a third time. (At "once before", a reply that prints a file
and then its corrected copy would be killed.)

One number, the level, says how long nothing new has been said. It is counted in characters of
prose and never falls below zero:

* A piece that ends a stale phrase raises it by its characters times a weight: 1 for a word of a
  sentence; ``structure_weight`` for a word that punctuation joins to others (code, markup, keys),
  for a single letter, a symbol, whitespace and a slice of a run without spaces (half of it where
  that may be an encoded image); ``data_weight`` for numbers (0xff is one) and literals such as
  ``null``. Repetition is what data is made of and what sentences are not.
* A piece that ends a new phrase lowers it by ``novelty_cost_chars``.
* So does a *turn*: copying goes on, but from another place than before. A loop copies on and on
  from one place; rows of a table and tiles of a map jump about.
* Where a phrase is stale only with its digits masked, a number counts on or differs: three times
  the cost once, and then ``structure_weight`` of what the piece would have raised.
* Whatever is no word, and a slice of a run without spaces, counts only while it is copied without a
  single change. A model drifts in a sentence that it repeats; data that varies is data.

The rule trips when the level reaches ``min_stale_chars``. This is a cumulative sum (Page, 1954): at
every piece it weighs "copying" against "going on", and its memory is one number. Every loop drives
it up whatever its period; the rows of a table, the copies of a chorus and a file printed twice each
run against what is new between them.

To follow a copy, its distance (the *lag*) is tried first. Where it fails, the last place of the
phrase is taken. In a loop whose unit repeats inside itself that is always too near a place, so the
turns are watched with Brent's cycle detection: the phrase at a turn is remembered at doubling
intervals, and when it comes back, the distance to it is the period.

The text is judged in blocks of 256 characters, counted from the beginning of the channel: the
verdict falls on a multiple of 256, whatever deltas the text came in, and everything costly is done
by compiled code for a whole block.

Blind spots:

* A bare counter, one number a line, and numbered rounds so short (under some 60 characters) that
  what a number touches is most of them: rows of data look the same.
* A stutter whose text moves on, and paraphrase without end: every phrase is new.
* A period of more than some 14,000 characters of prose: too many of its phrases drive each other
  out of the table.
* Grids of one value and rows of equal numbers are taken for data until some 35,000 characters.
* Requested repetition ("write it 500 times") is a loop by its text. Raise the floor for it.
"""

import re
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

BLOCK_CHARS = 256
"""Small beside any floor, large beside what a block costs by itself."""

LOOKBACK_PIECES = 4096
"""Above the longest period seen in published loops (6,000 characters, some 1,100 pieces) with room
to spare; longer remembers boilerplate that is only far apart."""

SLOTS = 8192
"""Entries of the direct-mapped table: twice the lookback, so that a loop's phrases seldom meet."""

SAMPLE_CHARS = 200
"""As much of what repeated as an operator needs to recognise it."""

_KEPT_BLOCKS = 32
"""The last 8,192 characters, in which the period of a trip is looked for."""

_TAG_SHIFT = 48
"""A tag is the top 16 bits of a phrase's hash: one new phrase in 65,536 is taken for the one in its
slot, which moves the level by a piece."""

_COUNTED_COST = 3
"""How many novelties a number that changes costs: 300 rows that differ in their numbers alone pass,
sentences of some 60 characters that count on do not."""

_MAX_LAG = LOOKBACK_PIECES - BLOCK_CHARS
"""A block, which is put into the ring whole, has at most as many pieces as characters."""

_PIECE_CAP_CHARS = 16
"""Above nearly every word, so that a capped piece is a slice of something that is none."""

_ENCODED_CHARS = 8
"""Base64 of equal bytes or pixels has a period of four; so have no words of this length."""

_PIECE = (
    r"(?:\d{1,4}(?:[.:]\d{1,4}){1,3}|\w{1,16}+)[^\w\n]{0,15}+\n{0,8}+"  # 00:02:10, 3.14 are one
    r"|[^\w\n]{1,16}+\n{0,8}+"
    r"|\n{1,16}+"
)
_piece = re.compile(_PIECE)
_ascii_piece = re.compile(_PIECE, re.ASCII)  # of text that is ASCII alone, the same for less
_word = re.compile(r"[^\W\d_]{2,}")
_after_run = re.compile(r"\W")
_prose_after = re.compile(
    r"[.!?\u2026)\"'\u2019\u201d*]{0,2}\s{1,2}|; {1,2}|\s?[-\u2013\u2014]\s?|['\u2019]|\.{3}\s"
)
"""What stands between the words of a sentence: a space, the marks that end one, a dash, an
apostrophe. Not a comma: most commas that come back and back are those of lists."""

_unspaced_script = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff]"
)
_digit = re.compile("[1-9]")
_surrogate = re.compile("[\ud800-\udfff]")
_LITERALS = frozenset({"true", "false", "null", "none", "nan", "nil", "undefined", "yes", "no"})


@dataclass(frozen=True, slots=True)
class StretchKnobs:
    """What the stretch rule trips on.

    Attributes:
        min_stale_chars: the floor: characters of prose, or their weight in other text, that must
            say nothing new. Lower cuts loops earlier and kills requested repetition and runs that a
            model leaves by itself (seen up to 3,000 characters).
        novelty_cost_chars: characters by which each new phrase, and each turn, lowers the level.
            Lower follows loops that drift and takes rows of one shape for a loop.
        structure_weight: what a character of code, markup, symbols or whitespace counts beside one
            of prose. Higher cuts loops in code earlier and kills generated code.
        data_weight: what a character of numbers and literals counts. Higher cuts floods of digits
            earlier and kills grids: at a floor of 2,350 and 0.07 a grid of 100 x 100 zeros passes.
    """

    min_stale_chars: int
    novelty_cost_chars: int
    structure_weight: float
    data_weight: float


class Copied(NamedTuple):
    """What repeated, as far as the kept text shows it.

    Attributes:
        onset_char: about where it began.
        stale_chars: characters since the level last stood at zero.
        period_chars: its period, digits aside; None where it has none.
        sample: its last round, or its last text, at most ``SAMPLE_CHARS``.
    """

    onset_char: int
    stale_chars: int
    period_chars: int | None
    sample: str


@lru_cache(maxsize=4096)
def _weigh(piece: str, structure_weight: float, data_weight: float) -> tuple[float, bool]:
    """What a stale piece counts, and whether only while it is copied without a change."""
    run = piece[: _run_end(piece)]
    is_slice = len(run) == _PIECE_CAP_CHARS
    fragile = False
    if _unspaced_script.search(run):
        weight = 1.0
    elif not is_slice and _word.search(run) is None:
        weight, fragile = _weigh_no_word(piece, run, structure_weight, data_weight)
    elif len(run) >= _ENCODED_CHARS and run[4:] == run[:-4]:
        weight, fragile = structure_weight / 2, True
    elif is_slice:
        weight, fragile = structure_weight, True
    elif run[0].isdigit() or run.lower() in _LITERALS:
        weight, fragile = data_weight, True
    elif _prose_after.fullmatch(piece, len(run)):
        weight = 1.0
    else:
        weight = structure_weight
    return weight * len(piece), fragile


def _weigh_no_word(
    piece: str, run: str, structure_weight: float, data_weight: float
) -> tuple[float, bool]:
    """The weight of a character, and whether it is fragile, where a piece holds no word."""
    if piece[0].isalpha() and piece[-1].isspace():
        return structure_weight, False
    is_white = piece[0] == "/" and not piece.strip("/\n")  # as base64
    if piece[0].isalpha() or is_white:
        return structure_weight / 2, True
    return data_weight if run.strip("_") else structure_weight, True


def _run_end(piece: str) -> int:
    after = _after_run.search(piece)
    return len(piece) if after is None else after.start()


class StretchRule:
    """Watches the text of one channel.

    Memory, once the first block is full: the table, 48 KiB; the ring, 8 KiB; the kept text, 8 to
    32 KiB. The cost of a piece is constant.

    Attributes:
        floor: the level at which it trips.
        peak: the highest level so far.
    """

    __slots__ = (
        "_anchor",
        "_anchor_at",
        "_copying",
        "_count",
        "_data",
        "_kept",
        "_knobs",
        "_lag",
        "_prose",
        "_read_chars",
        "_ring",
        "_since_char",
        "_tags",
        "_tail",
        "_turns",
        "_waiting",
        "_when",
        "floor",
        "peak",
    )

    def __init__(self, knobs: StretchKnobs, floor_factor: float = 1.0) -> None:
        self._knobs = knobs
        self.floor = knobs.min_stale_chars * floor_factor
        self.peak = 0.0
        self._waiting = ""
        self._read_chars = 0
        self._since_char = 0
        self._kept: deque[str] = deque(maxlen=_KEPT_BLOCKS)
        self._tail = ""
        self._count = 0
        self._tags = array("H")
        self._when = array("I")
        self._ring = array("H")
        self._prose = 0.0
        self._data = 0.0
        self._copying = False
        self._lag = 0
        self._turns = 0
        self._anchor = -1
        self._anchor_at = 0

    @property
    def level(self) -> float:
        """How long nothing new has been said, in characters of prose."""
        return self._prose + self._data

    @property
    def suspected(self) -> bool:
        """Whether a quarter of the floor is reached."""
        return self.level * 4 >= self.floor

    def feed(self, text: str) -> int | None:
        """Take the next text; how many of its characters it took to trip, or None.

        After a trip the rule must not be fed again.
        """
        waited = len(self._waiting)
        if waited + len(text) < BLOCK_CHARS:
            self._waiting += text
            return None
        text = self._waiting + text
        whole = len(text) - len(text) % BLOCK_CHARS
        for start in range(0, whole, BLOCK_CHARS):
            end = start + BLOCK_CHARS
            self._judge(text[start:end])
            self.peak = max(self.peak, self.level)
            if self.level >= self.floor:
                return end - waited
        self._waiting = text[whole:]
        return None

    def _judge(self, block: str) -> None:
        if not self._tags:
            self._tags = array("H", bytes(2 * SLOTS))
            self._when = array("I", bytes(4 * SLOTS))
            self._ring = array("H", bytes(2 * LOOKBACK_PIECES))
        if not block.isascii():
            block = _surrogate.sub("\ufffd", block)
        self._kept.append(block)
        self._read_chars += BLOCK_CHARS

        # The last piece may go on; the two before it begin the next phrases.
        text = self._tail + block
        piece = _ascii_piece if text.isascii() else _piece
        pieces = piece.findall(text)
        self._tail = "".join(pieces[-3:])
        exact = _hash_phrases(pieces)
        places = range(self._count + 1, self._count + 1 + len(exact))
        masked_text, digits = _digit.subn("0", text)
        if digits:
            masked = _hash_phrases(piece.findall(masked_text))
            alike = self._recall(masked, places)
            differ = [at for at, phrase in enumerate(exact) if phrase != masked[at]]
            stale = alike.copy()
            for at in differ:
                stale.pop(places[at], None)
            stale |= self._recall([exact[at] for at in differ], [places[at] for at in differ])
        else:
            stale = alike = self._recall(exact, places)
        tags = self._enter(exact)
        if stale or self.level:
            rising = self._follow(pieces[2:-1], tags, stale, alike)
            if rising:
                self._since_char = self._read_chars - sum(map(len, pieces[2 + rising :]))
        self._count += len(exact)

    def _recall(self, phrases: list[int], places: Sequence[int]) -> dict[int, int]:
        """Enter phrases into the table; from the place of each stale one to its last place."""
        tags, when, slots = self._tags, self._when, SLOTS - 1
        stale = {}
        for phrase, place in zip(phrases, places, strict=True):
            slot = phrase & slots
            tag = phrase >> _TAG_SHIFT
            if tags[slot] == tag:
                entry = when[slot]
                near = place - (entry >> 1) <= LOOKBACK_PIECES
                when[slot] = place << 1 | near
                if near and entry & 1:
                    stale[place] = entry >> 1
            else:
                tags[slot] = tag
                when[slot] = place << 1
        return stale

    def _enter(self, phrases: list[int]) -> list[int]:
        """Put the phrases into the ring, by which a copy is followed."""
        tags = [phrase >> _TAG_SHIFT for phrase in phrases]
        start = (self._count + 1) % LOOKBACK_PIECES
        fitting = array("H", tags[: LOOKBACK_PIECES - start])
        rest = array("H", tags[LOOKBACK_PIECES - start :])
        self._ring[start : start + len(fitting)] = fitting
        self._ring[: len(rest)] = rest
        return tags

    def _follow(
        self, pieces: list[str], tags: list[int], stale: dict[int, int], alike: dict[int, int]
    ) -> int:
        """Move the level over the pieces of a block.

        Returns:
            After how many of them the level stood at zero for the last time; 0 where it never did.
        """
        ring, lag = self._ring, self._lag
        structure, data = self._knobs.structure_weight, self._knobs.data_weight
        rising = 0
        for at, piece in enumerate(pieces):
            place = self._count + 1 + at
            if place in stale:
                if not lag or ring[(place - lag) % LOOKBACK_PIECES] != tags[at]:
                    lag = self._turn(tags[at], place, stale[place])
                self._copying = True
                gain, fragile = _weigh(piece, structure, data)
                if fragile:
                    self._data += gain
                else:
                    self._prose += gain
            elif self._prose or self._copying:
                self._stop_copying(piece, alike=place in alike)
            if self._prose <= 0:
                self._prose = 0.0
                if not self._data:
                    rising = at + 1
        self._lag = lag
        return rising

    def _turn(self, tag: int, place: int, last: int) -> int:
        """Copy from another place than before; the lag, by Brent's cycle detection over turns."""
        if self._copying:
            self._prose -= self._knobs.novelty_cost_chars
            self._data = 0.0
        lag = place - (self._anchor_at if tag == self._anchor else last)
        self._turns += 1
        if self._turns & (self._turns - 1) == 0:
            self._anchor, self._anchor_at = tag, place
        return lag if lag <= _MAX_LAG else 0

    def _stop_copying(self, piece: str, *, alike: bool) -> None:
        """A piece ends a new phrase, or one that is stale only with its digits masked."""
        knobs = self._knobs
        if not alike:
            self._prose -= knobs.novelty_cost_chars
        elif self._prose:
            if self._copying:
                self._prose -= _COUNTED_COST * knobs.novelty_cost_chars
            gain, _ = _weigh(piece, knobs.structure_weight, knobs.data_weight)
            self._prose += knobs.structure_weight * gain
        self._data = 0.0
        self._copying = False
        self._turns = 0
        self._anchor = -1

    def copied(self) -> Copied:
        """Describe what repeated, after a trip."""
        kept = "".join(self._kept)
        masked = _digit.sub("0", kept)
        period = _period(masked)
        stale = self._read_chars - self._since_char
        if period is None:
            return Copied(self._since_char, stale, None, kept[-SAMPLE_CHARS:])
        # The first two rounds were not stale yet.
        onset = max(0, self._since_char - 2 * period)
        return Copied(onset, stale, period, kept[-period:][:SAMPLE_CHARS])


def _hash_phrases(pieces: list[str]) -> list[int]:
    """Hash every three pieces in a row, the last piece left out: it may go on."""
    whole = pieces[:-1]
    phrases = map("".join, zip(whole, whole[1:], whole[2:], strict=False))
    return list(map(xxh3_64_intdigest, map(str.encode, phrases)))


def _period(text: str) -> int | None:
    """The period of the end of a text that shows two whole rounds of it; None if there is none."""
    end = text[-BLOCK_CHARS:]
    found = text.rfind(end, 0, len(text) - 1)
    if found < 0:
        return None
    period = len(text) - len(end) - found
    return period if text[:-period].endswith(text[-period:]) else None
