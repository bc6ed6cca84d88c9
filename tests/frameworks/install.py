"""Install the clients of the survey: `python -m tests.frameworks.install [CLIENT...]`."""

import argparse
import json
import shutil
import subprocess
import sys
import time

from tests.frameworks.clients import CLIENTS, Client


def install(client: Client) -> None:
    """Give the client an environment of its own, anew.

    Raises:
        subprocess.CalledProcessError: what pip or npm refused, with its words.
    """
    shutil.rmtree(client.home, ignore_errors=True)
    client.home.mkdir(parents=True)
    home = str(client.home)
    if client.is_node:
        steps = [["npm", "install", "--silent", "--prefix", home, *client.packages]]
    else:
        pip = ["python3", "-m", "pip", "--python", home, "install", "--quiet", *client.packages]
        steps = [["python3", "-m", "venv", "--without-pip", home], pip]  # as Debian's python3 can
    for step in steps:
        subprocess.run(step, check=True, capture_output=True, text=True)
    client.stamp.write_text(json.dumps(client.packages))


def main() -> int:
    """Install those that are asked for and not there yet; 1 when one could not be."""
    names = [client.name for client in CLIENTS]
    parser = argparse.ArgumentParser(prog="python -m tests.frameworks.install", description=__doc__)
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=f"else all: {' '.join(names)}")
    named = parser.parse_args().clients or names
    if unknown := [name for name in named if name not in names]:
        parser.error(f"no such client: {' '.join(unknown)}")
    status = 0
    for client in CLIENTS:
        if client.is_installed or client.name not in named:
            continue
        began_at = time.monotonic()
        try:
            install(client)
        except subprocess.CalledProcessError as error:
            status = 1
            print(f"{client.name}: {error}\n{error.stderr}", flush=True)
        else:
            print(f"{client.name}: installed in {time.monotonic() - began_at:.0f} s", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
