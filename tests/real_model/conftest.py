"""The model as a process, loopguard's command in front of it, and a summary of what was seen."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.real_model.install import MODEL, PYTHON

_SEEN = pytest.StashKey[list[str]]()

See = Callable[[str], None]


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_SEEN] = []


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print what was seen, whatever is captured and whether or not the tests passed."""
    if lines := config.stash[_SEEN]:
        terminalreporter.section("what was seen of a real model")
        terminalreporter.write_line("\n".join(lines))


@pytest.fixture
def see(request: pytest.FixtureRequest) -> See:
    """Takes a line of what was seen."""
    return request.config.stash[_SEEN].append


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The origin of a running model; it ends with its stdin, so also where these tests are killed.

    Its log is `llama.log` in pytest's folder of the session.
    """
    with (
        (tmp_path_factory.getbasetemp() / "llama.log").open("wb") as log,
        subprocess.Popen(
            [PYTHON, Path(__file__).with_name("llama_server.py"), MODEL],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as running,
    ):
        assert running.stdin is not None
        assert running.stdout is not None
        origin = running.stdout.readline().strip()
        assert origin, f"the model did not start: {log.name}"
        yield origin
        running.stdin.close()
