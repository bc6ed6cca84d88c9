"""Judge saved replies by the configured detector: whether each would trip, where, by which rule.

A reply is judged up to its trip, and so are the peaks of a reply that trips. The exit status is 0
where no reply tripped, 1 where one did, and 2 where something could not be read or was refused.
"""

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from loopguard.core.detection.frequency import FrequencyKnobs
from loopguard.core.detection.stretch import StretchKnobs
from loopguard.core.profile import Profile
from loopguard.core.text import one_line
from loopguard.scan.judge import Judged
from loopguard.scan.page import Page
from loopguard.scan.parallel import judge_all
from loopguard.scan.progress import Progress
from loopguard.scan.saved import FORMATS, Format, Saved, Unreadable, read_replies
from loopguard.settings import DEFAULT_PROFILE, ConfigurationError, load

if TYPE_CHECKING:
    from io import BufferedReader

    from _typeshed import DataclassInstance

STANDARD_INPUT = "-"

_TRIPPED = 1
_UNREADABLE = 2

_RULES: Mapping[str, type["DataclassInstance"]] = {
    "loop_detection": FrequencyKnobs,
    "stretch_detection": StretchKnobs,
}
"""A rule's table in a profile, and the knobs that stand in it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="text, lines of JSON, chat completions or a recorded stream, gzipped or not; "
        "- is the standard input",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a reply")
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write a page with each reply's curves"
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="the TOML file; the shipped one where absent"
    )
    parser.add_argument(
        "--profile",
        default=DEFAULT_PROFILE,
        metavar="NAME",
        help="whose detector judges; %(default)s where absent",
    )
    parser.add_argument(
        "--field", metavar="NAME", help="the field of a JSON object that holds the text"
    )
    parser.add_argument(
        "--format", choices=FORMATS, help="what every FILE is; found out where absent"
    )
    parser.add_argument(
        "--jobs", type=_at_least_one, default=1, metavar="N", help="processes; 1 where absent"
    )
    parser.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        help="show how far the scan is; on a terminal where absent",
    )
    for table, knobs in _RULES.items():
        group = parser.add_argument_group(f"{table}, over what the profile says")
        group.add_argument(
            _flag(table), action=argparse.BooleanOptionalAction, help="arm it, or disarm it"
        )
        for field in fields(knobs):
            group.add_argument(_flag(field.name), type=_written, metavar="FIGURE")


def _flag(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def _written(text: str) -> str:
    """A figure as it stands; an empty variable would be none, and settings judge the rest."""
    if not text:
        raise argparse.ArgumentTypeError("must not be empty")
    return text


def run(arguments: argparse.Namespace) -> int:
    """Judge the replies; the exit status.

    Raises:
        ConfigurationError: with every fault of the configuration and of the knobs.
    """
    return _scan(arguments, _profile(arguments, os.environ))


def _profile(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Profile:
    """The profile that judges. Knobs of the command line are judged as those of a variable are."""
    flags = {}
    variables = {}
    named = arguments.profile.upper().replace("-", "_")
    for table, knobs in _RULES.items():
        for key in ("enabled", *(field.name for field in fields(knobs))):
            option = table if key == "enabled" else key
            value = getattr(arguments, option)
            if value is not None:
                variable = f"LOOPGUARD_PROFILES__{named}__{table.upper()}__{key.upper()}"
                flags[variable] = _flag(option)
                variables[variable] = str(value)
    try:
        settings = load(arguments.config, {**environ, **variables})
    except ConfigurationError as error:
        raise ConfigurationError(_with_flags(line, flags) for line in error.faults) from None
    profile = settings.profiles.get(arguments.profile)
    if profile is None:
        raise ConfigurationError([f"--profile: no profile is named `{arguments.profile}`"])
    if not profile.detection.armed:
        raise ConfigurationError([f"profile `{profile.name}`: no rule is armed to judge by"])
    for warning in settings.warnings:
        if warning.startswith(f"profile `{profile.name}`: "):
            _complain(f"warning: {_with_flags(warning, flags)}")
    return profile


def _with_flags(line: str, flags: Mapping[str, str]) -> str:
    for variable, flag in flags.items():
        line = line.replace(variable, flag)
    return line


def _complain(line: str) -> None:
    print(line, file=sys.stderr)  # noqa: T201  a person asked


def _scan(arguments: argparse.Namespace, profile: Profile) -> int:
    verdicts: Counter[str] = Counter()
    unreadable = 0
    source = _Files(arguments.files, arguments.format, arguments.field)
    shows = sys.stderr.isatty() if arguments.progress is None else arguments.progress
    progress = Progress(
        sys.stderr if shows else None,
        source.total_bytes,
        time.monotonic,
        **({"patience_s": 0.0} if arguments.progress else {}),
    )
    with ExitStack() as stack:
        page = None
        if arguments.html is not None:
            try:
                file = stack.enter_context(arguments.html.open("w", encoding="utf-8"))
            except OSError as error:
                _complain(f"{arguments.html}: {error.strerror}")
                return _UNREADABLE
            page = Page(file, profile)
        for judged in judge_all(source.replies(), profile.detection, arguments.jobs):
            if sys.stdout.isatty() or isinstance(judged, Unreadable):
                progress.clear()
            if isinstance(judged, Unreadable):
                unreadable += 1
                _complain(one_line(str(judged)))
                continue
            verdicts[judged.trip.rule if judged.trip is not None else ""] += 1
            _tell(json.dumps(judged.figures()) if arguments.json else _in_words(judged))
            if page is not None:
                page.add(judged)
            progress.show(source.read_bytes, verdicts.total(), verdicts.total() - verdicts[""])
        progress.clear()
        if page is not None:
            page.end()
    if not arguments.json:
        _tell(_in_sum(verdicts))
    if unreadable:
        return _UNREADABLE
    return _TRIPPED if verdicts.total() > verdicts[""] else 0


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")


def _in_words(judged: Judged) -> str:
    trip = judged.trip
    name = one_line(judged.id)
    if trip is None:
        verdict = f"{name}: passed, {judged.words} words, {judged.chars} characters"
    else:
        verdict = f"{name}: tripped by {trip.rule} in {trip.channel}: {trip.sentence}"
        if trip.onset_char is not None:
            verdict += f", from character {trip.onset_char} on"
        if judged.period_chars is not None:
            verdict += f", period {judged.period_chars} characters"
    peaks = ", ".join(
        f"{rule} {level.peak:.0f} of {level.floor:.0f}" for rule, level in judged.peaks.items()
    )
    return f"{verdict}\n    peaks: {peaks or 'none'}"


def _in_sum(verdicts: Mapping[str, int]) -> str:
    by_rule = ", ".join(f"{count} by {rule}" for rule, count in sorted(verdicts.items()) if rule)
    tripped = sum(count for rule, count in verdicts.items() if rule)
    total = sum(verdicts.values())
    return f"{total} replies, {tripped} tripped" + (f" ({by_rule})" if by_rule else "")


class _Files:
    """The files of the command line, one open at a time.

    Attributes:
        total_bytes: of all; None where one of them, a pipe, does not say.
        read_bytes: read so far.
    """

    def __init__(self, names: Sequence[str], kind: Format | None, field: str | None) -> None:
        self._names = names
        self._kind = kind
        self._field = field
        self._passed_bytes = 0
        self._open: BufferedReader | None = None
        sizes = [_size_bytes(name) for name in names]
        self.total_bytes = None if None in sizes else sum(size or 0 for size in sizes)

    @property
    def read_bytes(self) -> int:
        within = self._open.tell() if self._open is not None and self._open.seekable() else 0
        return self._passed_bytes + within

    def replies(self) -> Iterator[Saved | Unreadable]:
        for name in self._names:
            try:
                file = (
                    open(0, "rb", closefd=False)  # noqa: SIM115  closed below, like the other
                    if name == STANDARD_INPUT
                    else Path(name).open("rb")  # noqa: SIM115  closed below
                )
            except OSError as error:
                yield Unreadable(f"{name}: {error.strerror}")
                continue
            with file:
                self._open = file
                yield from read_replies(file, name, self._kind, self._field)
                self._open = None
            self._passed_bytes += _size_bytes(name) or 0


def _size_bytes(name: str) -> int | None:
    """The size of a file; 0 where it cannot be read, None where it has none."""
    try:
        path = Path(name)
        return path.stat().st_size if name != STANDARD_INPUT and not path.is_fifo() else None
    except OSError:
        return 0
