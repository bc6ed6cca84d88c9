"""Judging what an operator pasted, in a process of its own."""

import asyncio
import gzip
import io
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from loopguard.console import trial
from loopguard.core.detection.detector import Detector
from loopguard.core.events import TextDelta
from loopguard.scan.judge import judge
from loopguard.scan.page import entry
from loopguard.settings import load
from tests.console.operated import Operated, operated
from tests.fake_openrouter import Reply

LOOP = "It begins. " + "void 0; " * 3000
DETECTION = load(environ={}).profiles["default"].detection
SAME_ORIGIN = {"Sec-Fetch-Site": "same-origin"}


def test_a_trial_says_what_scan_says() -> None:
    """A reply's entry is the one of scan's page, whatever the detection went through as JSON."""
    told = trial.verdicts(LOOP.encode(), "pasted", DETECTION)
    assert told == {
        "replies": [entry(judge("pasted", [TextDelta(LOOP)], DETECTION))],
        "total": 1,
        "tripped": 1,
        "faults": [],
    }
    asked = json.loads(json.dumps(trial.told_detection(DETECTION)))
    assert trial.detection_of(asked) == DETECTION


def test_many_replies_are_counted_and_some_shown() -> None:
    """All replies are counted, the first thirty are shown, and what is no reply is told."""
    lines = [json.dumps({"text": LOOP if number % 2 else "Good."}) for number in range(40)]
    told = trial.verdicts("\n".join([*lines, "no"]).encode(), "x.jsonl", DETECTION)
    assert (told["total"], told["tripped"], len(told["replies"])) == (40, 20, 30)
    assert told["faults"] == ["x.jsonl:41: no JSON"]


async def test_the_loop_goes_on_meanwhile() -> None:
    """While a large reply is judged the event loop is never held up for long."""
    text = " ".join(f"word {number}," for number in range(400_000)).encode()
    longest_s = 0.0
    judging = asyncio.create_task(trial.judged(gzip.compress(text), "x.txt", DETECTION))
    while not judging.done():
        asleep_at = time.process_time()  # what other processes take of the time is not ours
        await asyncio.sleep(0.001)
        longest_s = max(longest_s, time.process_time() - asleep_at)
    assert (await judging)["total"] == 1
    assert longest_s < 0.25


async def test_a_trial_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """What unpacks to more than can be judged in time is given up, and its process with it."""
    monkeypatch.setattr(trial, "TRIAL_S", 0.5)
    bomb = gzip.compress(b"void 0, " * 20_000_000, compresslevel=1)
    with pytest.raises(trial.TrialFailed, match="took more than"):
        await trial.judged(bomb, "x.txt", DETECTION)


def sent(reply: bytes, name: str = "x.txt", **draft: object) -> aiohttp.FormData:
    form = aiohttp.FormData()
    form.add_field("draft", json.dumps({"changes": [], **draft}))
    form.add_field("reply", io.BytesIO(reply), filename=name)
    return form


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[Operated]:
    with operated(tmp_path, [Reply("Good.")]) as started:
        yield started


def test_a_trial_is_asked_for(ours: Operated) -> None:
    """A form with a reply is answered with its verdict, by the knobs that the draft changes."""
    path = ["profiles", "default", "stretch_detection", "min_stale_chars"]
    for figure in (2350, 5000):
        changes = [{"path": path, "value": str(figure)}]
        status, told, _ = ours.request(
            "POST", "/configuration/try", SAME_ORIGIN, data=sent(LOOP.encode(), changes=changes)
        )
        assert status == 200
        stretch = replace(DETECTION.stretch, min_stale_chars=figure)
        by_hand = Detector(replace(DETECTION, stretch=stretch)).feed("content", LOOP)
        assert told["replies"][0]["at_char"] == by_hand.chars


def test_a_trial_that_cannot_be_is_refused(ours: Operated) -> None:
    """What is too long, has no profile, no rule or a knob at fault, is refused with its reason."""
    too_long = sent(b"x" * (trial.MAX_TRIAL_BYTES + 1))
    assert ours.request("POST", "/configuration/try", SAME_ORIGIN, data=too_long)[0] == 413
    for draft, line in (
        ({"profile": "nobody"}, "no profile has this name"),
        ({"profile": "unarmed"}, "profile `unarmed`: no rule is armed to judge by"),
        (
            {"changes": [{"path": ["profiles", "default", "relay"], "value": "x"}]},
            "profile `default`: relay: must be 'hold' or 'live'",
        ),
    ):
        status, told, _ = ours.request(
            "POST", "/configuration/try", SAME_ORIGIN, data=sent(b"x", **draft)
        )
        assert (status, told["faults"]) == (422, [line])
