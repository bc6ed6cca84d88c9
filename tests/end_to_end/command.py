"""The real command, ``loopguard serve``, as a process of its own."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tests.end_to_end.raw_caller import PATIENCE_S

_SERVING = re.compile(r"serving on .*:(\d+), for operators on .*:(\d+)")


class Command:
    """A running ``loopguard serve``.

    Attributes:
        port: where callers are served.
        admin: where operators look.
        lines: of its log, as far as they have been read.
    """

    def __init__(self, running: asyncio.subprocess.Process) -> None:
        self.port = 0
        self.admin = ""
        self.lines: list[str] = []
        self._running = running
        self._happened = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        """Take the log as it is written, so that the process never waits for its reader."""
        assert self._running.stderr is not None
        async for line in self._running.stderr:
            self.lines.append(line.decode())
            self._happen()
        self._happen()

    def _happen(self) -> None:
        self._happened.set()
        self._happened = asyncio.Event()

    async def line(self, fragment: str) -> str:
        """The first line of the log that holds the fragment, waited for."""
        return (await self.lines_with(fragment, 1))[0]

    async def lines_with(self, fragment: str, count: int) -> list[str]:
        """The lines of the log that hold the fragment, once there are so many."""
        async with asyncio.timeout(PATIENCE_S):
            while len(found := [line for line in self.lines if fragment in line]) < count:
                assert self._running.returncode is None, "".join(self.lines)
                await self._happened.wait()
        return found

    async def began(self) -> None:
        """Wait until it serves."""
        ports = _SERVING.search(json.loads(await self.line("serving on"))["message"])
        assert ports is not None
        self.port = int(ports[1])
        self.admin = f"http://127.0.0.1:{ports[2]}"

    def hang_up(self) -> None:
        """Send SIGHUP."""
        self._running.send_signal(signal.SIGHUP)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._running.terminate()

    async def kill(self) -> None:
        """Send SIGKILL and wait for the end, that of its workers included."""
        self._running.kill()
        await self.ended()

    async def ended(self) -> int:
        """Read the rest of the log and return the exit status."""
        async with asyncio.timeout(PATIENCE_S):
            await self._reading
            return await self._running.wait()

    async def workers(self, count: int) -> list[int]:
        """The processes of its workers, in the order in which they began; waits for so many."""
        begun = await self.lines_with("a worker serves", count)
        return [json.loads(line)["pid"] for line in begun]

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._running.pid

    def memory_bytes(self) -> int:
        """What it has resident."""
        pages = Path(f"/proc/{self._running.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def address_bytes(self) -> int:
        """What it has of address space."""
        pages = Path(f"/proc/{self._running.pid}/statm").read_text().split()[0]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def peak_memory_bytes(self) -> int:
        """The most that it has had resident."""
        status = Path(f"/proc/{self._running.pid}/status").read_text()
        (kilobytes,) = re.findall(r"VmHWM:\s+(\d+) kB", status)
        return int(kilobytes) * 1024

    def open_files(self) -> int:
        """How many descriptors it has open, sockets included."""
        return len(list(Path(f"/proc/{self._running.pid}/fd").iterdir()))


async def launch(
    base_url: str,
    config: Path | None = None,
    *,
    under: Sequence[str] = (),
    **environment: str,
) -> asyncio.subprocess.Process:
    """Start the command in front of an upstream; keywords are environment variables.

    Unless they say otherwise nothing is looked up while a test takes. What it is started under is
    a command that becomes the one that it is given, as `env` does.
    """
    environ = {name: text for name, text in os.environ.items() if not name.startswith("LOOPGUARD")}
    environ |= {
        "LOOPGUARD_SERVER__PORT": "0",
        "LOOPGUARD_SERVER__ADMIN_PORT": "0",
        "LOOPGUARD_RETRY__INITIAL_WAIT_S": "0.001",
        "LOOPGUARD_UPSTREAM__BASE_URL": base_url,
        "LOOPGUARD_LEDGER__FIRST_LOOK_S": "3600",
    }
    environ |= {f"LOOPGUARD_{name.upper()}": text for name, text in environment.items()}
    options = () if config is None else ("--config", str(config))
    words = (*under, sys.executable, "-m", "loopguard", "serve", *options)
    return await asyncio.create_subprocess_exec(*words, env=environ, stderr=asyncio.subprocess.PIPE)


@asynccontextmanager
async def serving(
    base_url: str,
    config: Path | None = None,
    *,
    under: Sequence[str] = (),
    **environment: str,
) -> AsyncIterator[Command]:
    """The command, serving in front of an upstream, as it is `launch`ed."""
    running = await launch(base_url, config, under=under, **environment)
    command = Command(running)
    try:
        await command.began()
        yield command
    finally:
        if running.returncode is None:
            await command.kill()
