"""The unit is accepted by systemd, locked down, and fits the program."""

import argparse
import configparser
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from loopguard import serve
from loopguard.cli import REFUSED
from loopguard.settings import load

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "loopguard.service"
TEXT = UNIT.read_text("utf-8")

# In tenths of what `systemd-analyze security` calls exposure, which is 92 for a unit that says
# nothing; below 20 it says OK. The network, which a proxy needs, is 8 of what is left.
MAX_EXPOSURE = 15


def option(name: str) -> str:
    """The value of an option of the service; its last one where there are several."""
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # systemd's names have capitals
    unit.read_string(TEXT)
    return unit["Service"][name]


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with a program that is there in the place of the installed one."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed (Debian's package systemd)")
    program = option("ExecStart").split()[0]
    path = tmp_path / UNIT.name
    path.write_text(TEXT.replace(f"ExecStart={program}", f"ExecStart={sys.executable}"))
    return path


def analyze(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, check=False)


def test_accepted(unit: Path) -> None:
    """systemd takes the unit without a word."""
    judged = analyze("verify", unit)
    assert (judged.returncode, judged.stderr) == (0, "")


def test_locked_down(unit: Path) -> None:
    """What the unit exposes is what a proxy needs."""
    judged = analyze("security", "--offline=true", f"--threshold={MAX_EXPOSURE}", unit)
    assert judged.returncode == 0, judged.stdout


def test_fits_the_program() -> None:
    """The unit starts a command that there is, gives its drain the time, and knows its refusal."""
    _, command, *words = shlex.split(option("ExecStart"))
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    assert command == "serve"
    assert parser.parse_args(words).config == Path("/etc/loopguard/loopguard.toml")
    server = load(None, {}).server
    assert int(option("TimeoutStopSec")) > server.drain_delay_s + server.drain_s
    assert option("KillSignal") == "SIGTERM"
    assert int(option("RestartPreventExitStatus")) == REFUSED
    assert option("StateDirectory") == "loopguard"
