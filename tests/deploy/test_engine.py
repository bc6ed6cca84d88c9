"""The image and compose.yaml on a real engine, where one is named.

    LOOPGUARD_ENGINE=docker pytest -s tests/deploy/test_engine.py

It builds the image, which fetches packages and takes minutes. `podman` will do as well.
`LOOPGUARD_ENGINE_BUILD` are further words for the build, say another base
(`--build-arg PYTHON_IMAGE=...`; podman keeps the health check with `--format docker` alone), and
`LOOPGUARD_COMPOSE` is the command of Compose, where it is not the engine's own. The ports that
compose.yaml publishes have to be free.
"""

import os
import secrets
import shlex
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pytest

from tests.deploy.test_container import last
from tests.end_to_end.raw_caller import REQUEST, connected, content_of, metrics

ROOT = Path(__file__).parents[2]
ENGINE = os.environ.get("LOOPGUARD_ENGINE", "")
COMPOSE = shlex.split(os.environ.get("LOOPGUARD_COMPOSE", f"{ENGINE} compose"))
BUILD = shlex.split(os.environ.get("LOOPGUARD_ENGINE_BUILD", ""))

# As docs/deployment.md gives it.
RUN = ("run", "--detach", "--read-only", "--cap-drop", "ALL", "--stop-timeout", "40")

BUILD_S = 900.0
PATIENCE_S = 60.0

pytestmark = pytest.mark.skipif(not ENGINE, reason="no engine is named in LOOPGUARD_ENGINE")


def engine(*words: str, within_s: float = PATIENCE_S) -> str:
    """Run a command of the engine; the last line of what it says."""
    command = [*shlex.split(ENGINE), *words]
    ran = subprocess.run(
        command, cwd=ROOT, timeout=within_s, check=True, capture_output=True, text=True
    )
    return (ran.stdout.splitlines() or [""])[-1]


@pytest.fixture(scope="module", autouse=True)
def _image() -> None:
    """The image, built as it stands."""
    engine("build", "--tag", "loopguard", *BUILD, ".", within_s=BUILD_S)


@contextmanager
def volume() -> Iterator[str]:
    """A volume that nobody has."""
    name = f"loopguard-{secrets.token_hex(4)}"
    engine("volume", "create", name)
    try:
        yield name
    finally:
        engine("volume", "rm", name)


@contextmanager
def container(state: str, *settings: str) -> Iterator[str]:
    """A container of the image; its id."""
    variables = [word for each in settings for word in ("--env", each)]
    name = engine(*RUN, "--volume", f"{state}:{last('VOLUME')}", *variables, "loopguard")
    try:
        yield name
    finally:
        engine("rm", "--force", name)


def well(name: str) -> bool:
    """Whether the health check that the image has says so, once there was time to start."""
    give_up_at = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up_at:
        try:
            return engine("exec", name, "loopguard", "healthcheck", "--ready").endswith("200")
        except subprocess.CalledProcessError:
            time.sleep(0.2)  # an engine does not tell when a container serves
    return False


def test_labels() -> None:
    """The image keeps its health check, its signal and its user."""
    asked = "{{.Config.Healthcheck.Test}} {{.Config.StopSignal}} {{.Config.User}}"
    told = engine("image", "inspect", "--format", asked, "loopguard")
    assert told == f"[CMD loopguard healthcheck] {last('STOPSIGNAL')} {last('USER')}"


@pytest.mark.parametrize("workers", [1, 2])
def test_run(workers: int) -> None:
    """It serves as nobody on a read-only root, ends well on SIGTERM, and keeps its ledger."""
    with volume() as state:
        with container(state, f"LOOPGUARD_SERVER__WORKERS={workers}") as name:
            assert well(name)
            kept = f"{last('VOLUME')}/ledger.db"
            python = ("exec", name, "/opt/loopguard/bin/python", "-c")
            assert engine(*python, "import os; print(os.getuid())") == last("USER").split(":")[0]
            with pytest.raises(subprocess.CalledProcessError) as refused:
                engine(*python, "open('/opt/loopguard/new', 'w')")
            assert "Read-only file system" in refused.value.stderr
            assert engine(*python, f"import os; print(os.path.exists('{kept}'))") == "True"
            engine("stop", name)
            assert engine("inspect", "--format", "{{.State.ExitCode}}", name) == "0"
        with container(state) as again:
            assert well(again)


def answers(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


@pytest.fixture
def demo() -> Iterator[None]:
    """Compose's demo, without the images of others."""

    def compose(*words: str) -> None:
        project = ["--project-name", "loopguard-tried", "--profile", "demo"]
        subprocess.run([*COMPOSE, *project, *words], cwd=ROOT, check=True, capture_output=True)

    try:
        compose("up", "--detach", "--no-build", "loopguard", "runaway", "demo")
        give_up_at = time.monotonic() + PATIENCE_S
        while not all(map(answers, (8081, 8091))):
            assert time.monotonic() < give_up_at, "loopguard does not serve"
            time.sleep(0.2)  # as above
        yield
    finally:
        compose("down", "--volumes")


@pytest.mark.usefixtures("demo")
async def test_compose() -> None:
    """Compose's demo answers its caller, though its model loops twice."""
    async with connected(8090) as caller:
        await caller.send(REQUEST)
        await caller.whole()
    assert caller.status == 200
    assert content_of(caller.body)
    assert caller.headers["x-loopguard-loop-aborts"] == "2"
    series = await metrics("http://127.0.0.1:8091")
    assert series["loopguard_loop_aborts_total"] == 2
