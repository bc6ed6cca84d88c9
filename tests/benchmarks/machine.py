"""What a benchmark runs on and with."""

import os
import platform
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

from tests.benchmarks.install import PROXIES

_MODEL_NAME = "model name"


def described() -> list[str]:
    """The machine and the versions, in lines."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("aiohttp", "uvloop", "orjson"))
    cores = f"{os.cpu_count()} cores ({_processor()}), {_memory_bytes() / 2**30:.0f} GiB"
    return [
        f"{cores}, {platform.system()} {platform.release()}",
        f"Python {platform.python_version()}, {packages}, loopguard {_commit()}",
        *(_said(name, "-v") for name in ("nginx", "haproxy") if shutil.which(name)),
        *(proxy.package for proxy in PROXIES if proxy.is_installed),
    ]


def _processor() -> str:
    told = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in told if line.startswith(_MODEL_NAME)]
    return names[0] if names else platform.machine()


def _memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _said(*command: str) -> str:
    """The first line that a program writes, wherever it writes it."""
    told = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return told.stdout.partition("\n")[0].partition(" - ")[0].strip()


def _commit() -> str:
    """Of the repository that is measured; its version where there is no repository."""
    folder = str(Path(__file__).parent)
    said = _said("git", "-C", folder, "describe", "--always", "--dirty")
    return version("loopguard") if "fatal" in said else said
