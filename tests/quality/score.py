"""Score every armed combination, and what others do, on the same rows in one run.

    python -m tests.quality.score [--files 4000] [--quick]

Prints the tables of docs/detector.md. A run takes a few minutes on one core.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from statistics import median

from loopguard.core.detection.detector import Detection, Detector, Trip
from loopguard.core.events import Channel
from loopguard.settings import load
from tests.quality import corpus, files
from tests.quality.corpus import RECALL_CHARS, Case
from tests.quality.literals import LITERALS
from tests.quality.others import OTHERS

_profiles = load(environ={}).profiles
SHIPPED = _profiles["default"].detection
DOCUMENT = _profiles["document"].detection
STRETCH_ALONE = replace(SHIPPED, frequency=None)

LONG_CHARS = 8_000
"""Counter and near rows of at least so much text should be seen as they are."""

_CHANNEL: dict[str, Channel] = {"tool_args": "arguments"}

Judge = Callable[[Case], int | None]


def trip_of(detection: Detection, case: Case) -> Trip | None:
    channel = _CHANNEL.get(case.channel, case.channel)
    return Detector(detection).feed(channel, case.text)  # type: ignore[arg-type]  # of the corpus


def tripped_at(detection: Detection, case: Case) -> int | None:
    trip = trip_of(detection, case)
    return None if trip is None else trip.chars


@dataclass
class Recall:
    """How soon the loops of one set were caught.

    Attributes:
        delays: characters from onset to trip, of the caught ones.
        missed: ids of those not caught within ``RECALL_CHARS``.
        early: ids of those that tripped before their onset: falsely where the text before it is
            known to be good; a real reply was looping inexactly already.
    """

    delays: list[int] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    early: list[str] = field(default_factory=list)

    def add(self, case: Case, at: int | None) -> None:
        onset = case.onset_char or 0
        if at is None or at > onset + RECALL_CHARS:
            self.missed.append(case.id)
        elif at < onset:
            self.early.append(case.id)
        else:
            self.delays.append(at - onset)

    @property
    def caught(self) -> int:
        return len(self.delays)

    @property
    def median(self) -> float:
        return median(self.delays)

    @property
    def percentile_90(self) -> int:
        return sorted(self.delays)[len(self.delays) * 90 // 100]

    @property
    def total(self) -> int:
        return len(self.delays) + len(self.missed) + len(self.early)

    def row(self) -> str:
        if not self.delays:
            return f"0 of {self.total} | - | - | -"
        return (
            f"{self.caught} of {self.total} | {self.median:,.0f} | {self.percentile_90:,} "
            f"| {max(self.delays):,}"
        )


def recall(judge: Judge, cases: Iterable[Case]) -> Recall:
    result = Recall()
    for case in cases:
        result.add(case, judge(case))
    return result


def tripping(judge: Judge, cases: Iterable[Case]) -> list[str]:
    return [case.id for case in cases if judge(case) is not None]


def literal_cases() -> Iterator[Case]:
    for kind, (write, size) in LITERALS.items():
        yield Case(f"{kind} {size}", "content", write(size), None)


def file_cases(count: int) -> Iterator[Case]:
    for path, text in files.texts(count):
        yield Case(path, "content", text, None)


def shown(label: str, cases: list[Case]) -> Iterator[Case]:
    """The cases, with a line of progress where a person is looking."""
    began = time.monotonic()
    for number, case in enumerate(cases, 1):
        yield case
        if sys.stderr.isatty() and (number % 20 == 0 or number == len(cases)):
            spent = time.monotonic() - began
            sys.stderr.write(f"\r\x1b[K{label}: {number} of {len(cases)}, {spent:.0f} s")
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")


def suspicion(detection: Detection, cases: Iterable[Case]) -> tuple[int, int, int, int]:
    """Replies ever suspected, replies, characters read while suspected, characters."""
    suspected = replies = suspect_chars = chars = 0
    for case in cases:
        detector = Detector(detection)
        held = 0
        for start in range(0, len(case.text), 64):
            piece = case.text[start : start + 64]
            detector.feed("content", piece)
            held += len(piece) if detector.suspected else 0
        suspected += held > 0
        replies += 1
        suspect_chars += held
        chars += len(case.text)
    return suspected, replies, suspect_chars, chars


def size_that_trips(judge: Judge, write: Callable[[int], str], size: int) -> int | None:
    """The first doubling of a realistic size that trips, up to 16 times as much."""
    for factor in (1, 2, 4, 8, 16):
        if judge(Case("", "content", write(size * factor), None)) is not None:
            return size * factor
    return None


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--files", type=int, default=4000, help="how many ordinary files")
    options.add_argument("--quick", action="store_true", help="leave the others out")
    chosen = options.parse_args()
    sets = {
        "reported": list(corpus.loops()),
        "legitimate": list(corpus.legitimate()),
        "exact": list(corpus.exact_loops()),
        "inexact": list(corpus.inexact_loops()),
        "replies": list(corpus.replies()),
        "literals": list(literal_cases()),
        "files": list(file_cases(chosen.files)),
    }
    judges: dict[str, Judge] = {
        "frequency rule alone": lambda case: tripped_at(DOCUMENT, case),
        "stretch rule alone": lambda case: tripped_at(STRETCH_ALONE, case),
        "both, as shipped": lambda case: tripped_at(SHIPPED, case),
    }
    if not chosen.quick:
        for name, other in OTHERS.items():
            judges[name] = lambda case, other=other: other(case.text)

    print(
        "| detector | reported loops caught | median | 90th | worst | legitimate | real, exact "
        "| real, inexact and long | replies | literals | files |"
    )
    print("|---" * 11 + "|")
    notes = []
    for name, judge in judges.items():

        def progress(part: str, name: str = name) -> Iterator[Case]:
            return shown(f"{name}, {part}", sets[part])

        reported = recall(judge, progress("reported"))
        exact = recall(judge, progress("exact"))
        long = [case for case in sets["inexact"] if len(case.text) >= LONG_CHARS]
        seen = tripping(judge, long)
        false = {
            part: tripping(judge, progress(part))
            for part in ("legitimate", "replies", "literals", "files")
        }
        counts = {part: f"{len(ids)} of {len(sets[part]):,}" for part, ids in false.items()}
        exact_row = f"{exact.caught + len(exact.early)} of {exact.total}"
        print(
            f"| {name} | {reported.row()} | {counts['legitimate']} | {exact_row} "
            f"| {len(seen)} of {len(long)} | {counts['replies']} | {counts['literals']} "
            f"| {counts['files']} |",
            flush=True,
        )
        notes.append(
            f"\n{name}: reported missed {reported.missed}, before onset {reported.early}; "
            f"exact missed {exact.missed}, before the exact run {exact.early}; "
            f"long inexact missed {[case.id for case in long if case.id not in seen]}; "
            f"legitimate {false['legitimate']}; replies {false['replies'][:20]}; "
            f"literals {false['literals']}"
        )
    print("\n".join(notes[:3]))

    print("\nOrdinary files that trip as shipped:")
    for case in sets["files"]:
        trip = trip_of(SHIPPED, case)
        if trip is not None:
            print(
                f"  {case.id}\n    {trip.rule} at {trip.chars:,}: {trip.seen}; {trip.sample[:70]!r}"
            )

    print("\nSize at which each literal trips (frequency rule alone, as shipped):")
    for kind, (write, size) in LITERALS.items():
        sizes = [
            size_that_trips(lambda case, armed=armed: tripped_at(armed, case), write, size)
            for armed in (DOCUMENT, SHIPPED)
        ]
        told = ", ".join("never" if size is None else f"{size:,}" for size in sizes)
        print(f"  {kind}: realistic {size:,}; {told}")

    suspected, replies, suspect_chars, chars = suspicion(
        SHIPPED, shown("suspicion", sets["replies"])
    )
    print(
        f"\nSuspected, of replies that do not loop: {suspected} of {replies:,} replies, "
        f"{suspect_chars / chars:.2%} of {chars:,} characters"
    )


if __name__ == "__main__":
    main()
