"""Who stops a runaway loop? Ask each client, and print what it made of it.

`python -m tests.frameworks.survey` asks the installed clients three times over: the fake model
that loops alone, then loopguard in front of one that loops twice and then answers, and in front of
one that always loops. With `--base-url` it asks them of that URL, whatever listens there.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from loopguard import log
from loopguard.app import Loopguard
from loopguard.runaway import ANSWER, UNIT, Record, Script, serving
from loopguard.settings import load
from tests.frameworks.clients import CLIENTS, Client
from tests.frameworks.tap import Request, Tap

DRIVERS = Path(__file__).with_name("drivers")
WRITTEN_ORIGIN = "http://127.0.0.1:8080"
"""Where the drivers, as the README, have loopguard; they are run with the real one in its place."""

LOOP_NAMES = ("model_response_loop", "model looped")
"""The error's name and the words of its message; clients show the one, the other or both."""

TIME_LIMIT_S = 180
"""A guarded run takes seconds; a client that is not done by then asks without end."""

QUIET = {
    "HTTP_PROXY": "http://127.0.0.1:9",  # nothing listens on the discard port
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "ALL_PROXY": "http://127.0.0.1:9",
    "NO_PROXY": "127.0.0.1,localhost",
    "DO_NOT_TRACK": "1",
    "NO_COLOR": "1",
    "TERM": "dumb",
    "AIDER_ANALYTICS_DISABLE": "true",
    "AIDER_CHECK_UPDATE": "false",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
}
"""Telemetry and update checks off, and a proxy that is not there for all but loopback."""


class Scene(NamedTuple):
    """What the clients are pointed at.

    Attributes:
        title: over its table.
        guarded: whether loopguard stands in between.
        loops: replies that loop before the answer; None: all.
        pace_s: rest of the endpoint after each delta.
    """

    title: str
    guarded: bool
    loops: int | None
    pace_s: float


SCENES = {
    "alone": Scene("The endpoint alone", guarded=False, loops=None, pace_s=Script().pace_s),
    "twice": Scene(
        "Behind loopguard: it loops twice, then answers", guarded=True, loops=2, pace_s=0
    ),
    "always": Scene("Behind loopguard: it always loops", guarded=True, loops=None, pace_s=0),
}


class Ending(NamedTuple):
    """How a client's process ended: its exit status (None: killed at the limit) and its words."""

    status: int | None
    stdout: str
    stderr: str


@dataclass(slots=True)
class Row:
    """One client on one wire.

    Attributes:
        requests: those for a reply that the client made.
        replies: those that the endpoint was asked for; unknown (none) of another's URL.
    """

    client: Client
    wire: str
    requests: list[Request]
    ending: Ending
    replies: list[Record] = field(default_factory=list)

    @property
    def loop_chars(self) -> int:
        """The most of the loop that one request brought the client."""
        return max((request.chars_of(UNIT) for request in self.requests), default=0)

    @property
    def cap(self) -> int | None:
        """The cap on the output that the first request asked for."""
        return self.requests[0].cap if self.requests else None

    @property
    def names_the_loop(self) -> bool:
        """Whether the client's user is told what happened, by its name."""
        shown = self.ending.stdout + self.ending.stderr
        return any(name in shown for name in LOOP_NAMES)

    @property
    def verdict(self) -> str:
        """What the client made of it."""
        status, stdout, stderr = self.ending
        if status is None:
            return f"not done after {TIME_LIMIT_S} s"
        shown = stdout.count(UNIT.strip()) * len(UNIT)
        if shown:
            return f"exit {status}, {shown:,} characters of the loop shown"
        if status == 0 and ANSWER in stdout:
            return "the answer"
        if self.names_the_loop:
            return f"exit {status}, says that the model looped"
        words = (stderr.strip() or stdout.strip() or "no word").splitlines()[-1]
        return f"exit {status}: {words[:100]}"


@contextlib.asynccontextmanager
async def staged(scene: Scene, answer: str, replies: list[Record]) -> AsyncIterator[str]:
    """The endpoint, and loopguard in front of it where the scene has it; yields the base URL."""
    script = Script(loops=scene.loops, pace_s=scene.pace_s, answer=answer)
    async with serving(script, replies.append) as endpoint:
        if not scene.guarded:
            yield endpoint
            return
        environ = {
            "LOOPGUARD_SERVER__PORT": "0",
            "LOOPGUARD_SERVER__ADMIN_PORT": "0",
            "LOOPGUARD_RETRY__INITIAL_WAIT_S": "0.01",
            "LOOPGUARD_UPSTREAM__BASE_URL": endpoint,
        }
        async with Loopguard(load(None, environ)) as loopguard:
            yield f"http://127.0.0.1:{loopguard.api_port}/v1"


async def play(client: Client, wire: str, scene: Scene) -> Row:
    """One client in one scene, with an endpoint and a guard of its own."""
    replies: list[Record] = []
    async with staged(scene, client.answer, replies) as base_url:
        row = await ask(client, wire, base_url)
    row.replies = replies
    return row


async def ask(client: Client, wire: str, base_url: str) -> Row:
    """One client at a base URL."""
    tap = Tap(base_url)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        async with tap.listening() as origin:
            ending = await drive(client, wire, origin, Path(home))
    return Row(client, wire, tap.requests, ending)


async def drive(client: Client, wire: str, origin: str, home: Path) -> Ending:
    """Run a client's driver against an origin, in an empty home, within the time limit."""
    driver = home / client.driver
    written = (DRIVERS / client.driver).read_text()
    driver.write_text(written.replace(WRITTEN_ORIGIN, origin))
    if client.is_node:  # an import is looked for beside the file that has it
        (home / "node_modules").symlink_to(client.home / "node_modules")
    work, temporary = home / "work", home / "tmp"
    work.mkdir()
    temporary.mkdir()
    environ = {
        **QUIET,
        "HOME": str(home),
        "TMPDIR": str(temporary),
        "LANG": "C.UTF-8",
        "PATH": f"{client.commands}:{os.environ['PATH']}",
    }
    running = await asyncio.create_subprocess_exec(
        *(client.runner, str(driver), wire),
        cwd=work,
        env=environ,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    talk = asyncio.create_task(running.communicate())
    done, _ = await asyncio.wait([talk], timeout=TIME_LIMIT_S)
    with contextlib.suppress(ProcessLookupError):  # its children too, such as a server it left
        os.killpg(running.pid, signal.SIGKILL)
    stdout, stderr = await talk
    status = running.returncode if done else None
    return Ending(status, stdout.decode(errors="replace"), stderr.decode(errors="replace"))


HEADINGS = (
    "framework",
    "version",
    "wire",
    "cap sent",
    "read of the loop",
    "what it made of it",
    "requests",
)


def cells(row: Row) -> list[str]:
    """A row of the survey's table."""
    return [
        row.client.name,
        row.client.version,
        row.wire,
        "none" if row.cap is None else f"{row.cap:,}",
        f"{row.loop_chars:,}",
        row.verdict,
        str(len(row.requests)),
    ]


def line(texts: Iterable[str]) -> str:
    """A line of a Markdown table."""
    return "| " + " | ".join(text.replace("|", "/") for text in texts) + " |"


async def survey(clients: list[Client], scenes: list[str], base_url: str | None) -> None:
    """Ask the clients, a table for each scene, each row printed when it is known."""
    for scene in [SCENES[name] for name in scenes] if base_url is None else [None]:
        headings = [*HEADINGS] if scene is None else [*HEADINGS, "upstream replies"]
        print(f"\n{base_url if scene is None else scene.title}\n")
        print(line(headings), line("---" for _ in headings), sep="\n", flush=True)
        for client in clients:
            for wire in client.wires:
                if scene is None:
                    print(line(cells(await ask(client, wire, str(base_url)))), flush=True)
                else:
                    row = await play(client, wire, scene)
                    print(line([*cells(row), str(len(row.replies))]), flush=True)


def main() -> int:
    """Ask those that are asked for; 1 when one of them is not installed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.frameworks.survey",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [client.name for client in CLIENTS]
    parser.add_argument(
        "--base-url", help="what to point them at, such as http://127.0.0.1:8080/v1"
    )
    parser.add_argument(
        "--client", action="append", choices=names, help="else all; may be repeated"
    )
    parser.add_argument("--scene", action="append", choices=SCENES, help="likewise")
    asked = parser.parse_args()
    log.configure("error", "text")  # the table tells the rest
    chosen = [client for client in CLIENTS if asked.client is None or client.name in asked.client]
    installed = [client for client in chosen if client.is_installed]
    asyncio.run(survey(installed, asked.scene or [*SCENES], asked.base_url))
    missing = [client.name for client in chosen if client not in installed]
    if missing:
        print(f"\nnot installed: {' '.join(missing)} (python -m tests.frameworks.install)")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
