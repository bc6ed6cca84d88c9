"""Starts what is measured, and asks the operating system what it has used."""

import os
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

CORES = sorted(os.sched_getaffinity(0))
LOAD_CORE, RELAY_CORE = CORES[0], CORES[-1]
"""Whoever makes the load runs on one core, and what is measured on another where there is one."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_CPU_CLOCK = 2  # CPUCLOCK_SCHED of clock_getcpuclockid(3)
START_TIMEOUT_S = 90  # LiteLLM imports for half a minute where nothing is cached
_FAREWELL_S = 5


class StartError(Exception):
    """A program did not come up."""


@contextmanager
def started(
    command: list[str], port: int, cores: Iterable[int], **environment: str
) -> Iterator[int]:
    """Run a program that listens on a port, on these cores alone; yields its pid.

    What the caller's own environment says to loopguard it is not told.

    Raises:
        StartError: it ended, or does not listen.
    """
    pinned = ["taskset", "--cpu-list", ",".join(map(str, cores)), *command]
    inherited = {name: at for name, at in os.environ.items() if not name.startswith("LOOPGUARD_")}
    with subprocess.Popen(
        pinned,
        env=inherited | environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            _wait_for(process, port)
            yield process.pid
        finally:
            process.terminate()
            try:
                process.wait(_FAREWELL_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_for(process: subprocess.Popen[bytes], port: int) -> None:
    ends_at = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < ends_at:
        if process.poll() is not None:
            raise StartError(f"{process.args[3]} ended with status {process.returncode}")  # type: ignore[index]  # a list
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise StartError(f"nobody listens on port {port}")


def tree(pid: int) -> list[int]:
    """The process and all below it."""
    pids = [pid]
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            pids += tree(int(child))
    return pids


def cpu_s(pid: int) -> float:
    """Seconds of processor that the tree has used, to the nanosecond."""
    return sum(time.clock_gettime(~member << 3 | _CPU_CLOCK) for member in tree(pid))


def machine_cpu_s() -> float:
    """Seconds of processor that everything on the machine has used, and other machines took."""
    user, nice, system, _idle, _waiting, *others = _first_line_of_stat()
    interrupts_and_stolen = others[:3]
    return (user + nice + system + sum(interrupts_and_stolen)) / os.sysconf("SC_CLK_TCK")


def _first_line_of_stat() -> list[int]:
    with Path("/proc/stat").open() as stat:
        return [int(ticks) for ticks in stat.readline().split()[1:]]


def rss_bytes(pid: int) -> int:
    """Memory that the tree has resident; what its processes share counts for each of them."""
    return sum(
        int(Path(f"/proc/{member}/statm").read_text().split()[1]) * _PAGE_BYTES
        for member in tree(pid)
    )


def sockets(pid: int) -> int:
    """How many sockets the tree has open."""
    links = [link for member in tree(pid) for link in Path(f"/proc/{member}/fd").iterdir()]
    return sum(_target(link).startswith("socket:") for link in links)


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except FileNotFoundError:  # closed since it was listed
        return ""
