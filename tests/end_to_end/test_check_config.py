"""What ``loopguard check-config`` and ``loopguard serve`` say of a configuration."""

import tomllib

import pytest
import uvloop

from loopguard.cli import main
from tests.end_to_end.refusal_cases import (
    ACCEPTED,
    REFUSED,
    WARNED,
    Case,
    implementer,
    loopguard,
    write,
)

# A command that starts with a configuration refuses the same ones, in the same words.
COMMANDS = ("check-config", "serve")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_refuses(command, case: Case, tmp_path, monkeypatch, capsys):
    """A configuration that cannot be armed is refused with one line a fault and status 2."""
    monkeypatch.setattr(uvloop, "run", pytest.fail)  # nothing of it is served
    for name, text in case.environ.items():
        monkeypatch.setenv(name, text)

    status = main([command, "--config", str(write(tmp_path, case))])

    written = capsys.readouterr()
    assert sorted(written.err.splitlines()) == sorted(case.lines)
    assert status == 2
    assert written.out == ""


@pytest.mark.parametrize("command", COMMANDS)
def test_refuses_as_a_process(command, tmp_path):
    """A process ends with the same lines and that status."""
    (case,) = (case for case in REFUSED if case.environ)

    ended = loopguard([command, "--config", str(write(tmp_path, case))], case.environ)

    assert sorted(ended.stderr.splitlines()) == sorted(case.lines)
    assert ended.returncode == 2
    assert ended.stdout == ""


@pytest.mark.parametrize("case", [*WARNED, *ACCEPTED], ids=lambda case: case.name)
def test_accepts(case: Case, tmp_path):
    """A configuration that can be armed is printed as TOML, and warned of where it is dubious."""
    ended = loopguard(["check-config", "--config", str(write(tmp_path, case))], case.environ)

    assert ended.stderr.splitlines() == list(case.lines)
    assert ended.returncode == 0
    written = tomllib.loads(case.toml)["profiles"].get("implementer")
    if written is not None:
        printed = tomllib.loads(ended.stdout)["profiles"]["implementer"]
        assert printed["loop_detection"] == written["loop_detection"]


def test_launch_sentence(tmp_path):
    """The launch sentence stands above the profile that is armed, and above no other."""
    path = tmp_path / "loopguard.toml"
    path.write_text(implementer(), "utf-8")

    lines = loopguard(["check-config", "--config", str(path)]).stdout.splitlines()

    assert lines[lines.index("[profiles.implementer]") - 1] == (
        "# profile `implementer`: loop detection: armed — a reply is abandoned after 3000 "
        "consecutive words during which 2 or more words have each occurred more than 32 times in "
        "the last 256, or once it passes 250000 characters"
    )
    assert lines[lines.index("[profiles.default]") - 1] == ""


def test_shipped():
    """Without a file named, the shipped configuration is read, and it is one without warnings."""
    ended = loopguard(["check-config"])

    assert (ended.returncode, ended.stderr) == (0, "")
    assert tomllib.loads(ended.stdout)["profiles"]["default"]["loop_detection"]["enabled"]


def test_masks_secrets(tmp_path):
    """Keys and tokens are printed as asterisks, whether the file or the environment set them."""
    path = tmp_path / "loopguard.toml"
    path.write_text('[server]\nclient_tokens = ["t0ken-a", "t0ken-b"]\n[profiles.default]\n')

    ended = loopguard(
        ["check-config", "--config", str(path)], {"LOOPGUARD_UPSTREAM__API_KEY": "sk-planted"}
    )

    printed = tomllib.loads(ended.stdout)
    assert printed["server"]["client_tokens"] == ["**********", "**********"]
    assert printed["upstream"]["api_key"] == "**********"
    assert "planted" not in ended.stdout + ended.stderr


def test_no_file(tmp_path):
    """A file that is not there is named and refused, without a traceback."""
    ended = loopguard(["check-config", "--config", str(tmp_path / "absent.toml")])

    assert ended.stderr == f"{tmp_path / 'absent.toml'}: No such file or directory\n"
    assert ended.returncode == 2
