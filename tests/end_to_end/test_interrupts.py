"""A command that Ctrl-C ends, or whose reader has left, ends quietly and says so by its status."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from loopguard.billing.database import Database
from loopguard.billing.ledger import Ledger
from loopguard.metrics import Metrics
from tests.ledger_values import exchange_row

# What a shell says of a program that the signal ended.
INTERRUPTED = 130
UNREAD = 141

PATIENCE_S = 30


# The least that a pipe takes: a command that tells more waits for its reader, however late.
PIPE_BYTES = 4096


def heed_interrupts() -> None:
    """In the new process: what runs in the background of a shell hands on that it ignores them."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def running(
    *words: str, python: Sequence[str] = (), **environment: str
) -> Iterator[subprocess.Popen[str]]:
    """The command, as a process that does not outlive the block."""
    ports = {"LOOPGUARD_SERVER__PORT": "0", "LOOPGUARD_SERVER__ADMIN_PORT": "0"}
    with subprocess.Popen(
        [sys.executable, *python, "-m", "loopguard", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        pipesize=PIPE_BYTES,
        preexec_fn=heed_interrupts,  # noqa: PLW1509 - no thread of the tests holds a lock then
        env=os.environ | ports | environment,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def interrupt(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Press Ctrl-C; the exit status as a shell tells it, and what is left of the standard error."""
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=PATIENCE_S)
    # Python dies by the signal itself where it came while a dataclass was being made.
    status = INTERRUPTED if process.returncode == -signal.SIGINT else process.returncode
    return status, complaint


def read_until(lines: Iterator[str], fragment: str) -> None:
    """Read until a line holds the fragment."""
    assert any(fragment in line for line in lines)


@pytest.mark.parametrize("command", ["serve", "demo", "check-config", "runaway"])
def test_while_it_starts(command: str) -> None:
    """Ctrl-C while a command is still being imported ends it without a traceback."""
    with running(command, python=("-X", "importtime")) as process:
        read_until(process.stderr, "loopguard.errors")
        status, rest = interrupt(process)
        assert status == INTERRUPTED
        assert "Traceback" not in rest


def test_while_it_shows() -> None:
    """Ctrl-C in the middle of the demonstration ends it without a traceback."""
    with running("demo") as process:
        read_until(process.stdout, "reading")
        assert interrupt(process) == (INTERRUPTED, "")


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_while_it_scans(tmp_path: Path, jobs: str) -> None:
    """Ctrl-C in the middle of a scan ends it and its processes without a traceback."""
    replies = tmp_path / "replies.jsonl"
    row = json.dumps({"text": "all is well, " * 200}) + "\n"
    replies.write_text(row * 20_000)
    with running("scan", "--json", "--jobs", jobs, str(replies)) as process:
        read_until(process.stdout, "tripped")
        assert interrupt(process) == (INTERRUPTED, "")


def test_while_it_serves() -> None:
    """Ctrl-C drains a server as SIGTERM does: it ends well."""
    with running("serve") as process:
        read_until(process.stderr, "serving on")
        status, rest = interrupt(process)
        assert status == 0
        assert "Traceback" not in rest


@pytest.mark.parametrize("command", ["check-config", "demo"])
def test_nobody_reads(command: str) -> None:
    """A command whose reader has left ends as a program that met a broken pipe does."""
    with running(command) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(PATIENCE_S) == UNREAD


def test_nobody_reads_an_export(tmp_path: Path) -> None:
    """An export whose reader has seen enough, in the middle of it, ends without a complaint."""
    url = f"sqlite:///{tmp_path}/ledger.db"

    async def fill() -> None:
        metrics = Metrics(CollectorRegistry())
        ledger = Ledger(Database(url), metrics, first_look_s=None, lease_s=30.0)
        ledger.start()
        for number in range(1_000):  # more than a pipe holds
            ledger.record_exchange(exchange_row(f"exchange-{number}"))
        await ledger.close()

    asyncio.run(fill())
    words = ("ledger", "export", "--rows", "exchanges")
    with running(*words, LOOPGUARD_LEDGER__URL=url) as process:
        assert process.stdout.readline().startswith("at,")
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(PATIENCE_S) == UNREAD
