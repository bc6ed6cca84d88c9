"""Judge the configuration and print what it comes to, as TOML with the secrets masked."""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from loopguard.core.detection.detector import describe
from loopguard.core.profile import Profile
from loopguard.settings import Settings, load


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="the TOML file; the shipped one where absent"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the effective configuration to stdout and its warnings to stderr.

    Raises:
        ConfigurationError: with every fault.
    """
    settings = load(arguments.config)
    for warning in settings.warnings:
        print(f"warning: {warning}", file=sys.stderr)  # noqa: T201  a person asked
    print("\n".join(effective(settings)))  # noqa: T201  the same
    return 0


def effective(settings: Settings) -> Iterator[str]:
    """The lines of a TOML file that says what was read; a profile's launch sentence above it."""
    routes = [route.model_dump() for route in settings.routes]
    if not routes:
        yield "routes = []"
        yield ""
    yield from _table("server", settings.server.model_dump())
    yield from _table("upstream", settings.upstream.model_dump())
    yield from _table("retry", asdict(settings.retry))
    yield from _table("loop_memory", settings.loop_memory.model_dump())
    yield from _table("ledger", settings.ledger.model_dump())
    yield from _table("log", settings.log.model_dump())
    yield from _table("traces", settings.traces.model_dump())
    for name, profile in settings.profiles.items():
        sentence = describe(profile.detection)
        if sentence is not None:
            yield f"# profile `{name}`: {sentence}"
        yield from _profile(profile)
    for route in routes:
        yield from _table("[routes]", route)


def _profile(profile: Profile) -> Iterator[str]:
    header = f"profiles.{profile.name}"
    yield from _table(
        header,
        {
            "relay": profile.relay,
            "live_trip": profile.live_trip,
            "channels": profile.detection.channels,
            "stream_idle_s": profile.stream_idle_s,
            "call_timeout_s": profile.call_timeout_s,
            "request_gate": profile.request_gate,
            "stop_on_identical": profile.stop_on_identical,
            "log_sample": profile.log_sample,
            "max_identical_calls": profile.detection.max_identical_calls,
        },
    )
    yield from _table(f"{header}.escape", asdict(profile.escape))
    rules = {
        "loop_detection": profile.detection.frequency,
        "stretch_detection": profile.detection.stretch,
    }
    for name, knobs in rules.items():
        yield from _table(
            f"{header}.{name}",
            {"enabled": False} if knobs is None else {"enabled": True, **asdict(knobs)},
        )


def _table(header: str, entries: Mapping[str, Any]) -> Iterator[str]:
    yield f"[{header}]"
    for key, value in entries.items():
        yield f"{key} = {_toml(value)}"
    yield ""


def _toml(value: Any) -> str:
    match value:
        case None:
            return '""'
        case SecretStr():
            return json.dumps(str(value))
        case tuple():
            return f"[{', '.join(map(_toml, value))}]"
        case _:
            return json.dumps(value, ensure_ascii=False)
