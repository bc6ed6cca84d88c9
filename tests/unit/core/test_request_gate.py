"""How much repetition a request asks for."""

from itertools import product

import pytest

from loopguard.core.detection.detector import MAX_FLOOR_FACTOR
from loopguard.core.request_gate import (
    MAX_CHARS,
    asked_count,
    floor_factor,
    holds_copies,
)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Write 'I will not talk in class' 50 times.", 50),
        ("Repeat the word poem 1,000 times", 1000),
        ("the same line x200", 200),
        ("this \u00d7 40 please", 40),
        ("Generate 200 rows of CSV", 200),
        ("Generate 200 sample CSV rows", 200),
        ("give me fifty lines of it", 50),
        ("a hundred different entries", 100),
        ("a 100 x 100 tilemap", 10_000),
        ("a grid of 64\u00d764", 4096),
        ("a 20 by 30 grid", 600),
        ("Schreib es 50 mal", 50),
        ("Schreib es 50-mal", 50),
        ("eine Tabelle mit 120 Zeilen", 120),
        ("hundert Zeilen davon", 100),
        ("escríbelo 50 veces", 50),
        ("una tabla de 300 filas", 300),
        ("écris-le 50 fois", 50),
        ("un tableau de 150 lignes", 150),
        ("把这句话写50次", 50),
        ("把这句话写五十遍", 50),
        ("写一千二百行", 1200),
        ("写两百三十五行", 235),
        ("写二万行", 20_000),
        ("これを50回書いて", 50),
        ("百回書いて", 100),
        ("Explain how TCP works.", 0),
        ("What happened in 1969?", 0),
        ("version x2000y", 0),
        ("Fix line 40 of main.py", 0),
    ],
)
def test_counts(text: str, count: int) -> None:
    """A count is read in the words that people use for it, and a number without them is none."""
    assert asked_count(text) == count


@pytest.mark.parametrize(
    ("words", "counted"),
    [
        ({"twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "hundred": 100}, "times"),
        ({"zwanzig": 20, "fünfzig": 50, "hundert": 100, "tausend": 1_000}, "mal"),
        ({"veinte": 20, "cincuenta": 50, "cien": 100, "mil": 1_000}, "veces"),
        ({"vingt": 20, "cinquante": 50, "cent": 100, "mille": 1_000}, "fois"),
    ],
)
def test_numbers_in_words(words: dict[str, int], counted: str) -> None:
    """The usual round numbers are read as words in four languages."""
    for word, number in words.items():
        assert asked_count(f"{word} {counted}") == number


@pytest.mark.parametrize(
    ("text", "factor"),
    [
        ("Explain how TCP works.", 1),
        ("Write it 5 times.", 1),
        ("Write it 50 times.", 3.5),
        ("Write it 9000000 times.", MAX_FLOOR_FACTOR),
        ("a 99999 x 99999 map", MAX_FLOOR_FACTOR),
    ],
)
def test_factor(text: str, factor: float) -> None:
    """Each twenty copies that are asked for raise the floors by one floor, up to the cap."""
    assert floor_factor(text) == factor


def test_request_that_repeats_itself() -> None:
    """A request that holds the same five words four times raises the floors, three times not."""
    row = "server eu-1 is up and serving.\n"
    assert holds_copies("Carry on:\n" + row * 4)
    assert floor_factor("Carry on:\n" + row * 4) == 4
    assert not holds_copies("Carry on:\n" + row * 3)


def test_both_ends_of_a_long_request_are_read() -> None:
    """Of a long request the beginning and the end are read, and the middle is not."""
    filler = " ".join("".join(letters) for letters in product("abcdefghijkl", repeat=4))
    assert len(filler) > 2 * MAX_CHARS
    ask = "Write it 100 times."
    assert floor_factor(f"{ask} {filler}") == 6
    assert floor_factor(f"{filler} {ask}") == 6
    assert floor_factor(f"{filler} {ask} {filler}") == 1
