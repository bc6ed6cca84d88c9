"""Install the proxies that Debian has not: `python -m tests.benchmarks.install [NAME...]`.

Each gets a folder of its own below `.benchmarks`, beside the `tests` folder, so that its packages
meet nobody else's.
"""

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parents[2] / ".benchmarks"


class Proxy(NamedTuple):
    """One that can be installed.

    Attributes:
        name: of its folder, and among the relays.
        package: from the index of its language, pinned.
        runs: the file in its folder that runs it.
    """

    name: str
    package: str
    runs: str

    @property
    def home(self) -> Path:
        """Its folder."""
        return FOLDER / self.name

    @property
    def command(self) -> Path:
        """What runs it."""
        return self.home / self.runs

    @property
    def is_installed(self) -> bool:
        """Whether it can be run."""
        return self.command.exists()


LITELLM = Proxy("litellm", "litellm[proxy]==1.108.6", "bin/litellm")
"""Never 1.82.7, 1.82.8 or 1.107.0: those were tampered with, or broken."""

PORTKEY = Proxy(
    "portkey",
    "@portkey-ai/gateway@1.15.2",
    "node_modules/@portkey-ai/gateway/build/start-server.js",
)
PROXIES = (LITELLM, PORTKEY)


def install(proxy: Proxy) -> None:
    """Give it a folder, anew.

    Raises:
        subprocess.CalledProcessError: what pip or npm refused, with its words.
    """
    home = str(proxy.home)
    shutil.rmtree(home, ignore_errors=True)
    proxy.home.mkdir(parents=True)
    if proxy is PORTKEY:
        steps = [["npm", "install", "--silent", "--prefix", home, proxy.package]]
    else:
        pip = ["python3", "-m", "pip", "--python", home, "install", "--quiet", proxy.package]
        steps = [["python3", "-m", "venv", "--without-pip", home], pip]  # as Debian's python3 can
    for step in steps:
        subprocess.run(step, check=True, capture_output=True, text=True)


def main() -> int:
    """Install those that are asked for and not there yet; 1 when one could not be."""
    names = [proxy.name for proxy in PROXIES]
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.install", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*names, []], help="else all")
    named = parser.parse_args().names or names
    status = 0
    for proxy in PROXIES:
        if proxy.is_installed or proxy.name not in named:
            continue
        began_at = time.monotonic()
        try:
            install(proxy)
        except subprocess.CalledProcessError as error:
            status = 1
            print(f"{proxy.name}: {error}\n{error.stderr}", flush=True)
        else:
            print(f"{proxy.name}: installed in {time.monotonic() - began_at:.0f} s", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
