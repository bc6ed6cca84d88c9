"""Judge a reply that an operator pasted, in a process of its own.

The process is given the reply and what is armed on its standard input, judges as ``loopguard scan``
does, and answers in JSON. Its priority is low and its time limited, so that a large reply delays no
stream.
"""

import asyncio
import io
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypeAlias, cast

from loopguard.core import json_text
from loopguard.core.detection.detector import Detection
from loopguard.core.detection.frequency import FrequencyKnobs
from loopguard.core.detection.stretch import StretchKnobs
from loopguard.core.text import one_line
from loopguard.scan.page import entry
from loopguard.scan.parallel import judge_all
from loopguard.scan.saved import Unreadable, read_replies

Json: TypeAlias = dict[str, Any]

MAX_TRIAL_BYTES = 8_388_608
"""Thirty replies as long as the shipped backstop. Whoever has more has ``loopguard scan``."""

TRIAL_S = 30.0
"""Ten times what that many characters take to judge; a gzip may hold more than it seems."""

SHOWN_REPLIES = 30
"""As many cards as a person scrolls through."""

_SHOWN_FAULTS = 10
_NICENESS = 10


class TrialFailed(Exception):
    """There is no verdict; the message says why."""


async def judged(reply: bytes, name: str, detection: Detection) -> Json:
    """Judge what was pasted or dropped.

    Args:
        reply: a reply or several, in any form that ``loopguard.scan.saved`` reads.
        name: of the file; its ending tells the form.
        detection: what is armed.

    Returns:
        ``replies``: the first ``SHOWN_REPLIES`` as ``loopguard.scan.page.entry`` tells them;
        ``total`` and ``tripped``: how many there were; ``faults``: what was no reply.

    Raises:
        TrialFailed: it took too long.
    """
    environ = {key: text for key, text in os.environ.items() if not key.startswith("LOOPGUARD_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",  # what lies in the present folder is not imported
        "-m",
        __name__,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=environ,
    )
    head = json_text.dumps({"name": name, "detection": told_detection(detection)})
    try:
        async with asyncio.timeout(TRIAL_S):
            answer, _ = await process.communicate(head + b"\n" + reply)
    except TimeoutError:
        raise TrialFailed(f"judging it took more than {TRIAL_S:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise TrialFailed("it could not be judged")
    result: Json = json_text.loads(answer)
    return result


def told_detection(detection: Detection) -> Json:
    """What is armed, ready for JSON."""
    return asdict(detection)


def detection_of(told: Mapping[str, Any]) -> Detection:
    """What is armed, as `told_detection` told it."""
    frequency, stretch = told["frequency"], told["stretch"]
    return Detection(
        channels=tuple(told["channels"]),
        frequency=None if frequency is None else FrequencyKnobs(**frequency),
        stretch=None if stretch is None else StretchKnobs(**stretch),
        max_identical_calls=told["max_identical_calls"],
    )


def verdicts(reply: bytes, name: str, detection: Detection) -> Json:
    """Judge in this process; what `judged` returns."""
    file = cast("io.BufferedReader", io.BufferedReader(io.BytesIO(reply)))
    replies: list[Json] = []
    faults: list[str] = []
    total = tripped = 0
    for each in judge_all(read_replies(file, name), detection, jobs=1):
        if isinstance(each, Unreadable):
            faults.append(one_line(str(each)))
            continue
        total += 1
        tripped += each.trip is not None
        if total <= SHOWN_REPLIES:
            replies.append(entry(each))
    return {
        "replies": replies,
        "total": total,
        "tripped": tripped,
        "faults": faults[:_SHOWN_FAULTS],
    }


def main() -> None:
    """Answer the process that started this one."""
    os.nice(_NICENESS)
    asked = json_text.loads(sys.stdin.buffer.readline())
    reply = sys.stdin.buffer.read()
    answer = verdicts(reply, asked["name"], detection_of(asked["detection"]))
    sys.stdout.buffer.write(json_text.dumps(answer))


if __name__ == "__main__":
    main()
