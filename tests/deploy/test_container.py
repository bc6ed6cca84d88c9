"""The Dockerfile's steps without an engine, and what they make, run as a container would be.

The first stage's commands run as they stand, in a clean folder in the place of `/`, on the files
that the engine would be sent. What they installed then runs as the user that the last stage names,
without capabilities, in a mount namespace where everything but the volume is read-only.

Blind spots: the base image and the engine, which `test_engine.py` tries where there is one.
"""

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.end_to_end.command import Command
from tests.end_to_end.raw_caller import REQUEST, connected, content_of
from tests.fake_openrouter import FakeOpenRouter, Reply
from tests.ports import free_port

ROOT = Path(__file__).parents[2]

# What the Dockerfile calls by these names stands below the clean folder.
OWN_PATHS = re.compile(r"(?<![\w./])/(source|wheels|state|opt/loopguard)\b")

# All but the volume; the last three are what a container's other mounts are, as far as writable.
READ_ONLY = """
mount --make-rprivate /
mount --bind "$STATE_DIRECTORY" "$STATE_DIRECTORY"
mount -o remount,bind,ro /
for folder in /tmp /dev/shm /run; do mountpoint -q $folder && mount -o remount,bind,ro $folder; done
exec setpriv --reuid "$0" --regid "$1" --clear-groups --bounding-set=-all --no-new-privs "${@:2}"
"""


class Instruction(NamedTuple):
    word: str
    rest: str


def instructions() -> list[Instruction]:
    """The Dockerfile's, without comments and with their lines joined."""
    lines = (ROOT / "Dockerfile").read_text("utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    joined = text.replace("\\\n", " ").splitlines()
    return [Instruction(*line.split(maxsplit=1)) for line in joined if line.strip()]


def stages() -> list[list[Instruction]]:
    """What stands behind each FROM, that one left out."""
    found: list[list[Instruction]] = []
    for instruction in instructions():
        if instruction.word == "FROM":
            found.append([])
        elif found:
            found[-1].append(instruction)
    return found


BUILD, IMAGE = stages()


def last(word: str) -> str:
    """The rest of the image's last instruction of that name."""
    *_, rest = [instruction.rest for instruction in IMAGE if instruction.word == word]
    return rest


def environment() -> dict[str, str]:
    """What ENV says."""
    words = [word for kind, rest in IMAGE if kind == "ENV" for word in shlex.split(rest)]
    return dict(word.split("=", 1) for word in words)


def usable_python() -> str | None:
    """An interpreter that another user may run too, and that has pip."""
    for candidate in (sys._base_executable, "/usr/bin/python3"):
        path = Path(candidate).resolve()
        others = all(folder.stat().st_mode & 0o001 for folder in (path, *path.parents))
        pip = subprocess.run([path, "-m", "pip", "--version"], capture_output=True, check=False)
        version = subprocess.run(
            [path, "-c", "import sys; print(sys.version_info >= (3, 11))"],
            capture_output=True,
            check=False,
        )
        if others and pip.returncode == 0 and version.stdout.strip() == b"True":
            return str(path)
    return None


class Built(NamedTuple):
    """The result: where it stands, how a command of it is run, and with which environment."""

    folder: Path
    runner: list[str]
    environ: dict[str, str]


@pytest.fixture(scope="module")
def built() -> Iterator[Built]:
    """Carry out the first stage, and give the volume to the user of the last one."""
    if os.geteuid() != 0:
        pytest.skip("only root may run it as another user, in a mount namespace")
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("mount namespaces are not allowed here")
    python = usable_python()
    if python is None:
        pytest.skip("no Python with pip that another user may run")
    with tempfile.TemporaryDirectory(prefix="loopguard-image-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        build(folder, python)
        user, group = last("USER").split(":")
        state = folder / "state" / "loopguard"
        os.chown(state, int(user), int(group))
        environ = {name: below(folder, text) for name, text in environment().items()}
        environ["PATH"] = environ["PATH"].replace("$PATH", os.defpath)
        environ["STATE_DIRECTORY"] = str(state)
        yield Built(folder, ["unshare", "--mount", "bash", "-ec", READ_ONLY, user, group], environ)


def below(folder: Path, text: str) -> str:
    """The text with the Dockerfile's own paths moved into the folder."""
    return OWN_PATHS.sub(rf"{folder}/\1", text)


def build(folder: Path, python: str) -> None:
    """Carry out the first stage."""
    names = folder / "bin"
    names.mkdir()
    for name, words in (("python", python), ("pip", f"{python} -m pip")):
        (names / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        (names / name).chmod(0o755)
    sent = sent_to_the_engine()
    place = folder
    arguments: dict[str, str] = {}
    for word, rest in BUILD:
        match word:
            case "ARG":
                argument, default = rest.split("=")
                arguments[argument] = default
            case "WORKDIR":
                place = Path(below(folder, rest))
                place.mkdir(parents=True, exist_ok=True)
            case "COPY":
                *sources, target = rest.split()
                for source in sources:
                    copied = [path for path in sent if path.is_relative_to(source)]
                    assert copied, f"{source} is not sent to the engine"
                    for path in copied:
                        to = place / target / path.relative_to(source)
                        if path == Path(source):
                            to = place / target / path.name
                        to.parent.mkdir(parents=True, exist_ok=True)
                        shutil.copyfile(ROOT / path, to)
            case "RUN":
                subprocess.run(
                    ["sh", "-ec", below(folder, rest)],
                    cwd=place,
                    env=os.environ
                    | arguments
                    | {"PATH": f"{names}:{os.environ['PATH']}", "PIP_QUIET": "2"},
                    check=True,
                )
            case _:
                raise AssertionError(f"{word} is not known to this test")


def sent_to_the_engine() -> list[Path]:
    """The files of the repository that .dockerignore lets through: a list of what is let."""
    everything, *let, caches = (ROOT / ".dockerignore").read_text("utf-8").split()
    assert (everything, caches) == ("*", "**/__pycache__")
    return [
        path.relative_to(ROOT)
        for name in let
        for path in [ROOT / name.removeprefix("!"), *(ROOT / name.removeprefix("!")).rglob("*")]
        if path.is_file() and "__pycache__" not in path.parts
    ]


async def test_runs_as_a_container(built: Built) -> None:
    """It serves as another user on a read-only tree, is found well, and ends well when told to."""
    port, admin_port = free_port(), free_port()
    entry = json.loads(last("ENTRYPOINT")) + json.loads(last("CMD"))
    check = json.loads(last("HEALTHCHECK").partition("CMD ")[2])
    async with FakeOpenRouter([Reply("The good answer.")]) as fake:
        environ = built.environ | {
            "LOOPGUARD_SERVER__PORT": str(port),
            "LOOPGUARD_SERVER__ADMIN_PORT": str(admin_port),
            "LOOPGUARD_UPSTREAM__BASE_URL": fake.base_url,
        }

        async def healthy() -> int:
            ran = await asyncio.create_subprocess_exec(*built.runner, *check, env=environ)
            return await ran.wait()

        running = await asyncio.create_subprocess_exec(
            *built.runner, *entry, env=environ, cwd="/", stderr=asyncio.subprocess.PIPE
        )
        command = Command(running)
        try:
            await command.began()
            assert await healthy() == 0
            async with connected(port) as caller:
                await caller.send(REQUEST)
                assert content_of(await caller.whole()) == "The good answer."
            running.send_signal(signal.Signals[last("STOPSIGNAL")])
            assert await command.ended() == 0
        finally:
            if running.returncode is None:
                await command.kill()
        assert await healthy() == 1
    ledger = Path(built.environ["STATE_DIRECTORY"]) / "ledger.db"
    assert ledger.stat().st_uid == int(last("USER").split(":")[0])


def test_only_the_volume_is_writable(built: Built) -> None:
    """The test above would see a write beside the volume: there is nowhere to write to."""
    program = (
        "import os, sys\n"
        "for folder in sys.argv[1:]:\n"
        "    try:\n"
        "        open(os.path.join(folder, 'probe'), 'w').close()\n"
        "        print('written')\n"
        "    except OSError as error:\n"
        "        print(error.strerror)\n"
    )
    python = built.folder / "opt/loopguard/bin/python"
    state = built.environ["STATE_DIRECTORY"]
    folders = [state, str(built.folder / "opt/loopguard"), "/tmp", "/dev/shm", "/var/tmp"]
    ran = subprocess.run(
        [*built.runner, python, "-c", program, *folders],
        env=built.environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.splitlines() == ["written", *["Read-only file system"] * 4]


def test_every_extra_of_a_server_is_installed(built: Built) -> None:
    """The image has what PostgreSQL needs, and nothing that only tests need."""
    program = "import asyncpg, loopguard.app, importlib.util as u; print(u.find_spec('pytest'))"
    python = built.folder / "opt/loopguard/bin/python"
    ran = subprocess.run([python, "-Ic", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "None\n"


def test_last_stage_runs_nothing() -> None:
    """The image needs no shell: its last stage runs nothing, its commands are lists of words."""
    assert "RUN" not in {word for word, _ in IMAGE}
    assert json.loads(last("ENTRYPOINT")) == ["loopguard"]
    assert json.loads(last("CMD")) == ["serve"]
    assert json.loads(last("HEALTHCHECK").partition("CMD ")[2]) == ["loopguard", "healthcheck"]


def test_user_is_a_number() -> None:
    """The user is a number and not root's, so that a cluster can tell."""
    user, group = map(int, last("USER").split(":"))
    assert user > 0
    assert group > 0
    copied = [rest for word, rest in IMAGE if word == "COPY" and "/state/" in rest]
    assert len(copied) == 1
    assert f"--chown={user}:{group} " in copied[0]


def test_one_volume() -> None:
    """State is in one volume, which is where the ledger goes and all that the user owns."""
    assert [rest for word, rest in IMAGE if word == "VOLUME"] == ["/var/lib/loopguard"]
    assert environment()["STATE_DIRECTORY"] == last("VOLUME")
    assert last("WORKDIR") == last("VOLUME")


def test_base_is_an_argument() -> None:
    """Both stages are on the image of one argument, which names no registry."""
    argument, default = instructions()[0].rest.split("=")
    bases = [rest.split()[0] for word, rest in instructions() if word == "FROM"]
    assert bases == [f"${{{argument}}}"] * 2
    assert "/" not in default
    assert "slim" in default


def test_labels() -> None:
    """The labels of the OCI are there, with the version that is built."""
    labels = dict(word.split("=", 1) for word in shlex.split(last("LABEL")))
    prefix = "org.opencontainers.image."
    assert {name.removeprefix(prefix) for name in labels} == {
        "title",
        "description",
        "licenses",
        "version",
        "revision",
        "base.name",
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    arguments = dict(rest.split("=", 1) for word, rest in IMAGE if word == "ARG" and "=" in rest)
    assert arguments["VERSION"] == project["version"]
    assert labels[f"{prefix}licenses"] == project["license"]
    assert labels[f"{prefix}description"] == project["description"]
