"""The document's table of refusals and warnings, and the rest of what loopguard judges.

Each case is a configuration and what must be said about it; the commands that read a configuration
are all held to the same table.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

FIGURES = {
    "enabled": "true",
    "window_words": "256",
    "repeat_threshold": "32",
    "min_offenders": "2",
    "min_saturated_run": "3000",
    "max_response_chars": "250000",
}
KNOBS = tuple(key for key in FIGURES if key != "enabled")


class Case(NamedTuple):
    """A configuration, the environment beside it, and the lines that must be on stderr."""

    name: str
    toml: str
    lines: tuple[str, ...]
    environ: Mapping[str, str] = {}


def implementer(**knobs: str | None) -> str:
    """A configuration whose profile `implementer` has these knobs; None leaves one out."""
    written = {key: value for key, value in {**FIGURES, **knobs}.items() if value is not None}
    table = "".join(f"{key} = {value}\n" for key, value in written.items())
    return f"[profiles.default]\n[profiles.implementer.loop_detection]\n{table}"


def _named(key: str, phrase: str) -> tuple[str, ...]:
    return (f"profile `implementer`: loop_detection.{key}: {phrase}",)


_NOT_A_NUMBER = {
    "text": '"256"',
    "a fraction": "256.5",
    "a float": "256.0",
    "a boolean": "true",
    "a list": "[256]",
}

REFUSED = (
    *(
        Case(
            f"armed without {knob}",
            implementer(**{knob: None}),
            _named(knob, "missing; an armed detector writes all five knobs"),
        )
        for knob in KNOBS
    ),
    *(
        Case(
            f"{knob} of 0, {state}",
            implementer(enabled=enabled, **{knob: "0"}),
            _named(knob, "must be 1 or more"),
        )
        for knob in ("window_words", "repeat_threshold", "min_offenders")
        for state, enabled in (("armed", "true"), ("disarmed", "false"))
    ),
    *(
        Case(
            f"{knob} below 0, disarmed",
            implementer(enabled="false", **{knob: "-1"}),
            _named(knob, f"must be {least} or more"),
        )
        for knob, least in zip(KNOBS, (1, 1, 1, 0, 0), strict=True)
    ),
    *(
        Case(
            f"a knob that is {what}, {state}",
            implementer(enabled=enabled, window_words=written),
            _named("window_words", "must be a whole number"),
        )
        for what, written in _NOT_A_NUMBER.items()
        for state, enabled in (("armed", "true"), ("disarmed", "false"))
    ),
    *(
        Case(
            f"a huge {knob}",
            implementer(**{knob: "1" + "0" * 30}),
            _named(knob, f"must be {1_000_000 if knob == 'window_words' else 2**32 - 1} or less"),
        )
        for knob in KNOBS
    ),
    Case(
        "a switch that is neither on nor off",
        implementer(enabled='"yes"'),
        _named("enabled", "must be true or false"),
    ),
    Case("knobs without their switch", implementer(enabled=None), _named("enabled", "missing")),
    Case(
        "an unknown knob",
        implementer(window_chars="1"),
        _named("window_chars", "unknown key"),
    ),
    Case(
        "faults in several places, the environment's among them",
        implementer(window_words="0", min_offenders=None)
        + '[[routes]]\nmodel = "*"\nprofile = "nobody"\n[retry]\nmax_attempts = 0\n[ledgers]\n',
        (
            "ledgers: unknown table",
            "routes[0].profile: no profile has this name",
            "retry.max_attempts: must be 1 or more",
            "server.port: must be 65535 or less (set by LOOPGUARD_SERVER__PORT)",
            "LOOPGUARD_SERVRE__PORT: no table has this name",
            *_named("window_words", "must be 1 or more"),
            *_named("min_offenders", "missing; an armed detector writes all five knobs"),
        ),
        {"LOOPGUARD_SERVER__PORT": "65536", "LOOPGUARD_SERVRE__PORT": "1"},
    ),
    Case(
        "an open relay",
        '[server]\nhost = "0.0.0.0"\n[upstream]\napi_key = "sk-planted"\n[profiles.default]\n',
        (
            (
                "server.client_tokens: needed, because upstream.api_key would pay for anyone who "
                "reaches server.host; or set server.host to 127.0.0.1, or leave upstream.api_key "
                "empty"
            ),
        ),
    ),
    Case("no default profile", "", ("profiles: must hold a profile named default",)),
)

WARNED = (
    Case(
        "more offenders than the window has words",
        implementer(min_offenders="257"),
        (
            (
                "warning: profile `implementer`: loop_detection.min_offenders: 257 words that each "
                "occur more than 32 times do not fit into window_words of 256, so only the length "
                "backstop can fire"
            ),
        ),
    ),
)

ACCEPTED = (
    Case("no loop detection at all", "[profiles.default]\n", ()),
    Case(
        "a disarmed detector without knobs",
        "[profiles.default]\n[profiles.implementer.loop_detection]\nenabled = false\n",
        (),
    ),
    Case("the plain frequency rule", implementer(min_saturated_run="0"), ()),
    Case("no length backstop", implementer(max_response_chars="0"), ()),
    Case("the document's figures", implementer(), ()),
)


def loopguard(
    words: Sequence[str], environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end, with no LOOPGUARD_ variable but the given ones."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("LOOPGUARD_")
    }
    return subprocess.run(
        [sys.executable, "-m", "loopguard", *words],
        env={**inherited, **(environ or {})},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


def write(folder: Path, case: Case) -> Path:
    """The case's configuration as a file."""
    path = folder / "loopguard.toml"
    path.write_text(case.toml, "utf-8")
    return path
