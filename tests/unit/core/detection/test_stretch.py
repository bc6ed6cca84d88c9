"""The stretch rule sees that nothing new is said, and lets data, rows and corrections pass."""

import base64
import random
from dataclasses import replace

import pytest

from loopguard.core.detection.stretch import (
    BLOCK_CHARS,
    LOOKBACK_PIECES,
    SAMPLE_CHARS,
    StretchKnobs,
    StretchRule,
)

SHIPPED = StretchKnobs(
    min_stale_chars=2350, novelty_cost_chars=12, structure_weight=0.4, data_weight=0.07
)
SYLLABLES = [first + vowel for first in "bdfgklmnprstvz" for vowel in "aeiou"]


def prose(seed: str, chars: int) -> str:
    """Sentences of words that hardly ever come in the same order twice."""
    drawn = random.Random(seed)
    text = ""
    while len(text) < chars:
        words = ["".join(drawn.choices(SYLLABLES, k=drawn.randrange(1, 4))) for _ in range(9)]
        text += " ".join(words).capitalize() + ". "
    return text[:chars]


def judge(text: str, knobs: StretchKnobs = SHIPPED) -> tuple[int | None, StretchRule]:
    rule = StretchRule(knobs)
    return rule.feed(text), rule


@pytest.mark.parametrize(
    ("unit", "within"),
    [
        ("court ", 2_900),
        ("Now I run it.\n", 3_100),
        ("OK\nWorking\n", 2_900),
        ("I open the file. I write the fix. Let me start.\n\n", 3_100),
        (prose("paragraph", 800), 4_800),
        (prose("paragraphs", 3_000), 9_200),
        (prose("chapter", 9_000), 26_000),
        ("快跑快跑快跑。", 2_900),
        ("\n", 6_700),
        ("!", 6_700),
        ("😀😃😄😁😆😅", 6_700),
        ("strstr", 6_700),
        ("<tr><td></td><td></td></tr>", 6_700),
        ('    {\n      "sku": "B-204",\n      "label": "Washer M6"\n    },\n', 8_000),
        ("a ", 6_700),
        ("0", 12_500),
        ("8.\t", 36_000),
        ("/", 12_500),
        ("A/", 12_500),
        ("null, ", 36_000),
        ("0xffff, ", 36_000),
        ("I care about the maps, and about the clocks. I care about the maps. ", 3_300),
        ("+--+--+--+\n  |  .  |\n", 6_900),
        ("\ud83d! ", 6_900),
    ],
)
def test_a_loop_trips_whatever_its_period(unit: str, within: int) -> None:
    """Words, sentences, paragraphs, symbols and whitespace: each trips within a bound."""
    before = prose("before", 1_000)
    taken, _ = judge(before + unit * max(4, 40_000 // len(unit)))
    assert taken is not None
    assert len(before) < taken < len(before) + within


@pytest.mark.parametrize(
    "unit",
    [
        "Step {}: I look at the table again and I see that all of it is fine.\n",
        "{}. Yes, I do agree with all of that today, and I have nothing to add.\n",
    ],
)
def test_rounds_that_count_up_trip(unit: str) -> None:
    """A number that counts on in a sentence does not hide that the sentence is the same."""
    taken, _ = judge("".join(unit.format(number) for number in range(1_000)))
    assert taken is not None
    assert taken < 16_000


def test_rounds_in_changing_order_trip() -> None:
    """Three sentences in any order say nothing new."""
    drawn = random.Random(1)
    rounds = ["I will send the files. ", "Let me finish the report now. ", "All of it is done. "]
    taken, _ = judge("".join(drawn.choice(rounds) for _ in range(1_000)))
    assert taken is not None
    assert taken < 6_000


@pytest.mark.parametrize(
    "text",
    [
        prose("reply", 60_000),
        "Here it is:\n" + prose("file", 9_000) + "\nCorrected:\n" + prose("file", 9_000),
        "[" + ", ".join(["0"] * 64 * 64) + "]",
        " ".join(random.Random(2).choices(["0", "1", "2"], k=30_000)),
        "".join(f"INSERT INTO t (id, name) VALUES ({n}, 'user{n}');\n" for n in range(400)),
        "\n".join(f"{row},sensor-north,{row * 7919 % 997},degrees,ok" for row in range(1_500)),
        "\n".join(map(str, range(10_000))),
        "I will not draw on the walls of the school.\n" * 50,
        base64.encodebytes(b"picture" + bytes(8_000) + b"\xff" * 8_000).decode(),
        base64.b64encode(b"picture" + bytes(8_000) + b"\xff" * 8_000).decode(),
    ],
    ids=[
        "prose",
        "file twice",
        "zeros",
        "tiles",
        "inserts",
        "rows",
        "counting",
        "fifty lines",
        "image in lines",
        "image",
    ],
)
def test_what_only_looks_like_a_loop_passes(text: str) -> None:
    """Prose, a file and its correction, data and rows of one shape do not trip."""
    assert judge(text)[0] is None


def test_a_reply_that_leaves_a_run_is_forgotten_it() -> None:
    """What is new lowers the level to nothing; a second run begins anew."""
    run = "Now I run it.\n" * 150
    taken, rule = judge(run + prose("between", 6_000))
    assert (taken, rule.level) == (None, 0.0)
    assert 1_700 < rule.peak < 2_350
    assert rule.feed(run) is None


def test_the_verdict_falls_on_a_block() -> None:
    """Whatever the pieces, the trip comes at the same multiple of 256 characters."""
    text = prose("before", 700) + "Let me look at it again. " * 300
    taken, _ = judge(text)
    assert taken is not None
    assert taken % BLOCK_CHARS == 0
    for size in (1, 4, 255, 256, 257, 1_000):
        rule = StretchRule(SHIPPED)
        read = 0
        while (last := rule.feed(text[read : read + size])) is None:
            read += size
        assert read + last == taken


def test_a_raised_floor_takes_as_much_more() -> None:
    """With five times the floor a loop trips five times as late."""
    rule = StretchRule(SHIPPED, 5.0)
    taken = rule.feed("court " * 10_000)
    assert taken is not None
    assert rule.floor == 11_750
    assert 11_750 < taken < 12_400


def test_suspicion_comes_at_a_quarter_of_the_floor() -> None:
    """The rule suspects a loop some 600 characters after its third round began."""
    rule = StretchRule(SHIPPED)
    rule.feed(prose("before", 1_024))
    assert not rule.suspected
    rule.feed("Now I run it.\n" * 30)
    assert not rule.suspected
    rule.feed("Now I run it.\n" * 60)
    assert rule.suspected


def test_what_repeated_is_told() -> None:
    """The onset, the period and one round of it are found in the kept text."""
    before = prose("before", 1_000)
    unit = "Let me look at it again, and then again. "
    taken, rule = judge(before + unit * 200)
    assert taken is not None
    copied = rule.copied()
    assert copied.period_chars == len(unit)
    assert abs(copied.onset_char - len(before)) < len(unit)
    assert taken - copied.stale_chars == pytest.approx(len(before) + 2 * len(unit), abs=len(unit))
    assert copied.sample in unit * 2


def test_a_period_is_told_when_a_number_counts_in_it() -> None:
    """Digits are masked where the period is looked for."""
    unit = "Step {:04d}: I look at the table and see that it is fine.\n"
    _, rule = judge("".join(unit.format(number) for number in range(1_000)))
    assert rule.copied().period_chars == len(unit.format(0))


@pytest.mark.parametrize(
    "rounds",
    [
        ["I will send the files. ", "Let me finish the report now. ", "All of it is done. "],
        [prose("long", 260), prose("other", 300), prose("third", 280)],
    ],
)
def test_what_has_no_period_is_shown_by_its_end(rounds: list[str]) -> None:
    """Where rounds change places there is no period, and the sample is the last text."""
    drawn = random.Random(7)
    text = "".join(drawn.choice(rounds) for _ in range(2_000))
    taken, rule = judge(text)
    assert taken is not None
    copied = rule.copied()
    assert copied.period_chars is None
    assert copied.sample == text[taken - SAMPLE_CHARS : taken]


def test_what_tripped_at_once_has_no_period_to_show() -> None:
    """A single block shows no second round of anything longer than itself."""
    rule = StretchRule(replace(SHIPPED, min_stale_chars=50))
    assert rule.feed("Now I run it.\n" * 30) == BLOCK_CHARS
    assert rule.copied().period_chars is None


def test_a_sample_is_bounded() -> None:
    """Of a long round no more is kept than an operator needs."""
    _, rule = judge(prose("round", 1_500) * 20)
    copied = rule.copied()
    assert copied.period_chars == 1_500
    assert len(copied.sample) == SAMPLE_CHARS


def test_what_is_too_far_apart_is_forgotten() -> None:
    """A third copy that comes after the lookback counts as new."""
    period = prose("long", 40_000)
    assert judge(period * 4)[0] is None


def test_a_copy_from_beyond_the_ring_is_not_followed() -> None:
    """A place nearly as far back as the lookback is found again for every phrase: all turns."""
    words = [f"{first}{second} " for first in SYLLABLES for second in SYLLABLES]
    unit = "".join(words[: LOOKBACK_PIECES - 100])
    rule = StretchRule(replace(SHIPPED, min_stale_chars=10**6))
    rule.feed(unit * 3)
    assert rule.peak < 100


def test_memory_is_allocated_with_the_first_block_and_stays() -> None:
    """Before 256 characters there is no table; at its fullest a channel takes under 128 KiB."""
    rule = StretchRule(SHIPPED)
    rule.feed("x" * (BLOCK_CHARS - 1))
    tables = (rule._tags, rule._when, rule._ring)
    assert not any(tables)
    rule.feed("😀 novel " + prose("reply", 100_000))
    tables = (rule._tags, rule._when, rule._ring)
    table_bytes = sum(len(table) * table.itemsize for table in tables)
    kept_bytes = sum(map(len, rule._kept)) * 4
    assert table_bytes + kept_bytes <= 128 * 1024
