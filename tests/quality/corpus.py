"""The shared corpora as cases to judge, built as their own README says.

They are read at ``../shared/corpus`` beside the repository, or where LOOPGUARD_SHARED points.
"""

import gzip
import json
import os
import random
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

SHARED = Path(os.environ.get("LOOPGUARD_SHARED") or Path(__file__).resolve().parents[3] / "shared")
CORPUS = SHARED / "corpus"

LOOP_CHARS = 60_000
"""Characters of loop that a case is continued to."""

RECALL_CHARS = 50_000
"""A loop is caught when it trips within so many characters of its onset."""

UNKNOWN_LEAD_IN_WORDS = 150


class Case(NamedTuple):
    """One reply to judge; ``onset_char`` is None for a legitimate one."""

    id: str
    channel: str
    text: str
    onset_char: int | None


def rows_of(name: str) -> Iterator[dict]:
    path = CORPUS / name
    content = path.read_bytes()
    text = gzip.decompress(content) if path.suffix == ".gz" else content
    yield from map(json.loads, text.splitlines())


@cache
def prose_words() -> list[str]:
    """Ordinary words for lead-ins: real replies, those not too long to be one-sided."""
    words: list[str] = []
    for row in rows_of("replies.jsonl.gz"):
        if len(row["text"]) < 3000:
            words += row["text"].split(" ")
        if len(words) > 20_000:
            break
    return words


def lead_in(case_id: str, words: int) -> str:
    if not words:
        return ""
    start = random.Random(case_id).randrange(len(prose_words()) - words)
    return " ".join(prose_words()[start : start + words]) + "\n"


def counted_on(rounds: list[str]) -> Iterator[str]:
    """Rounds that differ only in their numbers, counting on as the first two do."""
    written = [re.findall(r"\d+", one) for one in rounds[:2]]
    frame = re.split(r"\d+", rounds[0])
    turn = 0
    while True:
        shown = []
        for first, second in zip(*written, strict=True):
            width = len(first) if first.startswith("0") else 1
            shown.append(f"{int(first) + (int(second) - int(first)) * turn:0{width}d}")
        yield "".join(part for pair in zip(frame, [*shown, ""], strict=True) for part in pair)
        turn += 1


def rounds_of(row: dict) -> Iterator[str]:
    rounds = row.get("sample_rounds")
    if not rounds:
        while True:
            yield row["unit"]
    if len({re.sub(r"\d+", "0", one) for one in rounds}) == 1:
        yield from counted_on(rounds)
    drawn = random.Random(row["id"])
    while True:
        yield drawn.choice(rounds)


def filled(rounds: Iterator[str], chars: int) -> str:
    pieces: list[str] = []
    size = 0
    while size < chars:
        pieces.append(next(rounds))
        size += len(pieces[-1])
    return "".join(pieces)[:chars]


def loops() -> Iterator[Case]:
    for row in rows_of("cases.jsonl"):
        if row["kind"] == "loop":
            words = row["lead_in_words"]
            before = lead_in(row["id"], UNKNOWN_LEAD_IN_WORDS if words is None else words)
            text = before + filled(rounds_of(row), LOOP_CHARS)
            yield Case(row["id"], row["channel"], text, len(before))


def legitimate() -> Iterator[Case]:
    for row in rows_of("cases.jsonl"):
        if row["kind"] != "loop":
            yield Case(row["id"], row["channel"], row["unit"], None)


def periodic_from(text: str, period: int) -> int:
    """Where the run begins that repeats with the period up to the end of the text."""
    at = len(text) - period
    while at > 0 and text[at - 1] == text[at - 1 + period]:
        at -= 1
    return at


def exact_loops() -> Iterator[Case]:
    for row in rows_of("real_loops.jsonl.gz"):
        if row["kind"] == "exact":
            text, period = row["text"], row["period_chars"]
            onset = periodic_from(text, period)
            missing = max(0, onset + LOOP_CHARS - len(text))
            more = text[-period:] * (missing // period + 1)
            yield Case(row["id"], "content", text + more[:missing], onset)


def inexact_loops() -> Iterator[Case]:
    """Counter and near rows as they are; where they begin to loop is not known."""
    for row in rows_of("real_loops.jsonl.gz"):
        if row["kind"] != "exact":
            yield Case(f"{row['id']} ({row['kind']})", "content", row["text"], 0)


def replies() -> Iterator[Case]:
    for row in rows_of("replies.jsonl.gz"):
        yield Case(row["id"], "content", row["text"], None)
