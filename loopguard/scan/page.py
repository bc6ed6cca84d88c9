"""The report of a scan as one page that needs nothing else: its curves, its style, its script.

What a model wrote stands in a block of JSON in which no ``<`` is left, and reaches the page as text
nodes alone. The page's own policy allows no request, and of scripts and styles just the two that
are in it, by their hashes.
"""

import base64
import hashlib
import json
import re
from dataclasses import asdict
from html import escape
from pathlib import Path
from string import Template
from typing import Any, TextIO

from loopguard.core.detection.detector import describe
from loopguard.core.profile import Profile
from loopguard.scan.judge import Curve, Judged

STATIC = Path(__file__).with_name("static")
"""The page's parts. With ``curve.js``, ``reply.js`` and ``curve.css`` the console draws too."""

_REPLIES = "<!-- replies -->"
_import = re.compile(r"^import .*\n", re.MULTILINE)


class Page:
    """Writes the page as replies are judged; one reply is held at a time.

    Args:
        file: where to.
        profile: what they are judged by.
    """

    def __init__(self, file: TextIO, profile: Profile) -> None:
        self._file = file
        head, _, self._foot = _page(profile).partition(_REPLIES)
        file.write(head)

    def add(self, judged: Judged) -> None:
        """Write one reply."""
        self._file.write(_in_script(entry(judged)) + "\n")

    def end(self) -> None:
        """Write what stands below the replies."""
        self._file.write(self._foot)


def entry(judged: Judged) -> dict[str, Any]:
    """One reply as the page's script takes it: its figures, and what a person looks at."""
    trip = judged.trip
    return judged.figures() | {
        "sentence": trip and trip.sentence,
        "excerpt": judged.excerpt,
        "curves": [
            _curve(curve)
            | (
                {"trip_char": trip.chars, "onset_char": trip.onset_char}
                if trip is not None and curve.place == judged.place and trip.rule != "upstream"
                else {"trip_char": None, "onset_char": None}
            )
            for curve in judged.curves
            if curve.levels
        ],
    }


def _curve(curve: Curve) -> dict[str, Any]:
    channel, choice, call = curve.place
    label = channel if channel != "arguments" else f"arguments of call {call + 1}"
    return {
        "label": label if choice == 0 else f"{label}, choice {choice + 1}",
        "chars": curve.chars,
        "rules": [
            {
                "name": rule,
                "unit": "words" if rule == "frequency" else "characters",
                "peak": round(level.peak, 1),
                "floor": level.floor,
                "levels": [round(now, 1) for now in curve.levels[rule]],
            }
            for rule, level in curve.peaks.items()
        ],
    }


def _page(profile: Profile) -> str:
    style = _static("curve.css") + _static("report.css")
    parts = "".join(_static(name) for name in ("curve.js", "reply.js", "report.js"))
    script = _import.sub("", parts)
    return Template(_static("report.html")).substitute(
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
        profile=escape(profile.name),
        sentence=escape(describe(profile.detection) or ""),
        knobs=_in_script(_knobs(profile)),
    )


def _knobs(profile: Profile) -> dict[str, Any]:
    """Each armed rule's knobs; the backstop is one of the frequency rule's."""
    rules = {"frequency": profile.detection.frequency, "stretch": profile.detection.stretch}
    return {rule: asdict(knobs) for rule, knobs in rules.items() if knobs is not None}


def _static(name: str) -> str:
    return (STATIC / name).read_text("utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _in_script(value: object) -> str:
    """JSON of ASCII alone, in which no tag can begin."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")
