"""How much repetition the caller has asked for.

"Write it 500 times" cannot be told from a loop by the reply alone. The request says it: by a count
that it names (``50 times``, ``x200``, ``200 rows``, ``100 x 100``), or by holding the same thing
several times itself, as a request to carry on a table or a log does. Both raise the floor that a
rule has to reach before it trips, for that exchange alone.

Only what the user said last is read, and only the two ends of a long text: an instruction stands at
its beginning or its end. The factor is capped, so that a number which means something else (a year,
a port) delays a cut and never prevents it.

Blind spots: a count that is asked for in other words ("fill the page"), in a language that is not
here, or in an earlier turn; a request whose middle alone holds the count.
"""

import re
from collections import Counter
from itertools import chain, islice

from loopguard.core.detection.detector import MAX_FLOOR_FACTOR

MAX_CHARS = 4_096
"""What is read of a request. It takes a tenth of a millisecond, and never more than two."""

_MAX_NUMBERS = 500
"""A text with more of them is data, and its numbers are no counts."""

_COPIES_A_FLOOR = 20
"""A floor is some 2,500 characters, and a line that people ask for repeatedly some 120."""

_COUNT_FROM = 10
"""Fewer copies than this reach no floor, and small numbers mean anything."""

_HELD_COPIES = 4
"""A thing said a third time is already what a rule counts; prose seldom repeats five words."""

_HELD_WORDS = 5

_HELD_FACTOR = 4.0
"""A repetitive request announces a repetitive reply, of a length that it does not tell."""

_CJK_DIGITS = {character: value for value, character in enumerate("〇一二三四五六七八九")} | {
    "零": 0,
    "两": 2,
    "兩": 2,
}
_CJK_UNITS = {"十": 10, "百": 100, "千": 1_000, "万": 10_000, "萬": 10_000}
_CJK_VALUES = _CJK_DIGITS | _CJK_UNITS
_NUMBER_WORDS = {
    "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "hundred": 100, "thousand": 1_000,
    "zwanzig": 20, "fünfzig": 50, "hundert": 100, "tausend": 1_000,
    "veinte": 20, "cincuenta": 50, "cien": 100, "mil": 1_000,
    "vingt": 20, "cinquante": 50, "cent": 100, "mille": 1_000,
}  # fmt: skip

# What is counted, as people say it: repetitions, and the parts that data is asked for in.
_COUNTED = (
    "times|copies|repetitions|iterations|rows|lines|entries|items|records|elements|cells|columns|"
    "steps|verses|paragraphs|examples|"
    "mal|zeilen|kopien|einträge|wiederholungen|elemente|datensätze|"
    "veces|filas|líneas|lineas|copias|entradas|repeticiones|elementos|"
    "fois|lignes|entrées|répétitions|rangées|éléments"
)
_COUNTED_CJK = "次|遍|行|个|個|条|條|项|項|回|列|件|つ|度"

# A number is found first and what stands behind it is looked at then: a text without numbers is
# passed over at the speed of the search for one.
_NUMBER = re.compile(
    r"\d{1,3}(?:[.,']\d{3})+(?!\d)|\d+"
    rf"|[{''.join(_CJK_VALUES)}]+"
)
_NUMBER_IN_WORDS = re.compile(rf"\b(?:{'|'.join(_NUMBER_WORDS)})\b")
_THEN_COUNTED = re.compile(
    rf"(?:[\s-]+[^\W\d]{{1,20}}){{0,2}}?[\s-]*(?:{_COUNTED})\b|\s*(?:{_COUNTED_CJK})"
)
_THEN_BY = re.compile(r"\s*(?:x|\u00d7|\*|by|mal|por|par)\s*(\d{1,5})\b")
_SIGNED = re.compile(r"(?<![\w.])[x\u00d7]\s?\d+(?!\w)")

_MAX_DIGITS = 7
"""A longer number is an identifier."""


def excerpt(text: str) -> str:
    """The two ends of a text that is longer than what is read."""
    if len(text) <= MAX_CHARS:
        return text
    return f"{text[: MAX_CHARS // 2]}\n{text[-MAX_CHARS // 2 :]}"


def floor_factor(text: str) -> float:
    """Say by how much the floors are raised for a request.

    Args:
        text: what the user said last; of more than `MAX_CHARS` characters the two ends are read.

    Returns:
        1 where nothing is asked for, at most `MAX_FLOOR_FACTOR`.
    """
    text = excerpt(text)
    factor = 1.0
    if (count := asked_count(text)) >= _COUNT_FROM:
        factor += count / _COPIES_A_FLOOR
    if holds_copies(text):
        factor = max(factor, _HELD_FACTOR)
    return min(factor, MAX_FLOOR_FACTOR)


def asked_count(text: str) -> int:
    """The highest count that the text names, 0 where it names none."""
    text = text.lower()
    numbers = _NUMBER.finditer(text)
    if any(word in text for word in _NUMBER_WORDS):
        numbers = chain(numbers, _NUMBER_IN_WORDS.finditer(text))
    return max((_count(number, text) for number in islice(numbers, _MAX_NUMBERS)), default=0)


def _count(number: re.Match[str], text: str) -> int:
    """The number, if the text says that it counts something; else 0."""
    start, end = number.span()
    if by := _THEN_BY.match(text, end):
        return _value(number) * int(by[1])
    if _THEN_COUNTED.match(text, end) or _SIGNED.search(text, max(0, start - 3), end + 1):
        return _value(number)
    return 0


def _value(number: re.Match[str]) -> int:
    written = number[0]
    if written in _NUMBER_WORDS:
        return _NUMBER_WORDS[written]
    if written[0] in _CJK_VALUES:
        return _cjk_number(written)
    digits = re.sub(r"\D", "", written)
    return int(digits) if len(digits) <= _MAX_DIGITS else 0


def _cjk_number(text: str) -> int:
    """Read ``五十`` as 50 and ``一千二百`` as 1,200."""
    total, digit = 0, None
    for character in text:
        if character in _CJK_DIGITS:
            digit = _CJK_DIGITS[character]
        else:
            total += (1 if digit is None else digit) * _CJK_UNITS[character]
            digit = None
    return total + (digit or 0)


def holds_copies(text: str) -> bool:
    """Whether some five words in a row stand in the text several times."""
    words = text.split()
    runs = Counter(zip(*(words[start:] for start in range(_HELD_WORDS)), strict=False))
    return bool(runs) and max(runs.values()) >= _HELD_COPIES
