"""Pairs of a request and its reply: repetition that was asked for, and loops that were not.

    python -m tests.quality.requests

Scores the shipped rules with the request gate and without it. The pairs are of our own making: what
people ask for repeatedly, in the sizes that they ask for, and loops after requests that name
numbers which mean something else.
"""

import json
import random
from collections.abc import Iterator
from typing import NamedTuple

from loopguard.core.detection.detector import Detector
from loopguard.core.dialects import chat
from loopguard.core.request_gate import floor_factor
from loopguard.settings import load

LOOP_CHARS = 60_000
LINE = "I will not talk in class while the teacher is speaking."


class Pair(NamedTuple):
    """A request, and what a model answered."""

    name: str
    request: str
    reply: str


def asked() -> Iterator[Pair]:
    """Replies that repeat because they were asked to."""
    for times in (30, 50, 100, 200):
        yield Pair(f"{times} times", f"Write '{LINE}' {times} times.", f"{LINE}\n" * times)
        yield Pair(f"x{times}", f"{LINE} x{times}", f"{LINE}\n" * times)
    yield Pair("auf Deutsch", "Schreib das 100 mal: Ich soll nicht reden.", line("de") * 100)
    yield Pair("en español", "Escribe esto 100 veces: No debo hablar.", line("es") * 100)
    yield Pair("en français", "Écris 100 fois : je ne dois pas parler.", line("fr") * 100)
    yield Pair("中文", "把这句话写一百遍:上课时我不会说话。", "上课时我不会说话。\n" * 100)
    yield Pair("日本語", "これを100回書いて:授業中は話しません。", "授業中は話しません。\n" * 100)
    yield Pair(
        "a prayer", "Repeat the mantra a hundred times.", "om mani padme hum, om shanti\n" * 100
    )
    chooser = random.Random(7)
    for side in (64, 100):
        rows = (", ".join(chooser.choice("0012") for _ in range(side)) for _ in range(side))
        yield Pair(
            f"{side} x {side} tiles", f"A {side} x {side} tilemap of 3 ids.", ",\n".join(rows)
        )
    status = '{"host": "eu-1", "status": "up", "load": "low", "alerts": []}'
    yield Pair("200 rows", "Give me 200 rows of this status for a test.", f"{status}\n" * 200)
    yield Pair("carry on", "Carry this log on:\n" + f"{status}\n" * 5, f"{status}\n" * 120)


def line(language: str) -> str:
    """What pupils write, in their language."""
    return {
        "de": "Ich soll im Unterricht nicht mit meinem Nachbarn reden.\n",
        "es": "No debo hablar con mi compañero durante la clase.\n",
        "fr": "Je ne dois pas parler avec mon voisin pendant la classe.\n",
    }[language]


def not_asked() -> Iterator[Pair]:
    """Loops after requests whose numbers mean something else, or are asked for and overrun."""
    units = {
        "sentence": "Wait, let me check the second condition again before I go on. ",
        "code": "void 0; ",
        "paragraph": " ".join(f"Point {number} is settled as before." for number in range(12))
        + "\n",
    }
    requests = {
        "no number": "Explain how a suspension bridge carries its load.",
        "a year": "What changed in the 1969 edition, and in 2024?",
        "few items": "List 5 items and 3 examples for each of the 12 months.",
        "a port": "Why does port 8080 answer 503 after 30000 requests?",
        "a line": "Fix line 4000 of main.py.",
        "50 times": "Write a sentence 50 times.",
        "100 x 100": "A 100 x 100 tilemap.",
    }
    for said, request in requests.items():
        for kind, unit in units.items():
            text = unit * (LOOP_CHARS // len(unit) + 1)
            yield Pair(f"{said}, {kind}", request, text[:LOOP_CHARS])


def tripped_at(pair: Pair, *, gate: bool) -> int | None:
    """The character at which the shipped rules trip on the reply, None where they do not."""
    body = {"messages": [{"role": "user", "content": pair.request}]}
    factor = floor_factor(chat.plan(json.dumps(body).encode()).asked) if gate else 1.0
    detector = Detector(load(environ={}).profiles["default"].detection, factor)
    trip = detector.feed("content", pair.reply)
    return None if trip is None else trip.chars


def main() -> None:
    """Print what the gate changes."""
    for title, pairs in (("asked for", list(asked())), ("not asked for", list(not_asked()))):
        print(f"\n| {title} | characters | without the gate | with it |\n|---|---|---|---|")
        for pair in pairs:
            at = [tripped_at(pair, gate=gate) for gate in (False, True)]
            cells = ["passes" if char is None else f"trips at {char:,}" for char in at]
            print(f"| {pair.name} | {len(pair.reply):,} | {cells[0]} | {cells[1]} |")


if __name__ == "__main__":
    main()
