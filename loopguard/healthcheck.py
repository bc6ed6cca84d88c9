"""Ask a running loopguard on this machine whether it is well: status 0 for yes, 1 for no.

For containers, which have neither a shell nor curl. It is asked where the configuration says that
operators look, so it is given the same file and environment as `serve`.
"""

import argparse
import http.client
import ipaddress
import sys
from http import HTTPStatus
from pathlib import Path

from loopguard.settings import ConfigurationError, Server, load

TIMEOUT_S = 2.0
"""An answer takes milliseconds; whoever checks gives up after some 3 s (Docker, Kubernetes)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="the TOML file; the shipped one where absent"
    )
    parser.add_argument(
        "--ready",
        action="store_true",
        help="ask whether it takes further exchanges (/readyz), not whether it lives (/healthz)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Ask, and say in one line what was found.

    A configuration that is refused is status 1 as well: to a container's engine 2 means nothing.
    """
    try:
        server = load(arguments.config).server
    except ConfigurationError as error:
        sys.stderr.write(f"the configuration is refused: {error.faults[0]}\n")
        return 1
    host = reachable(server.admin_host)
    path = "/readyz" if arguments.ready else "/healthz"
    found, well = _ask(host, server, path)
    where = f"[{host}]" if ":" in host else host
    line = f"http://{where}:{server.admin_port}{path}: {found}\n"
    (sys.stdout if well else sys.stderr).write(line)
    return 0 if well else 1


def reachable(host: str) -> str:
    """The address to ask a listener at: loopback where it listens on all addresses."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if not address.is_unspecified:
        return host
    return "127.0.0.1" if address.version == 4 else "::1"  # noqa: PLR2004  the version of IP


def _ask(host: str, server: Server, path: str) -> tuple[str, bool]:
    if server.admin_port == 0:
        return "the port is of the system's choice, so it cannot be asked", False
    admin = http.client.HTTPConnection(host, server.admin_port, timeout=TIMEOUT_S)
    try:
        admin.request("GET", path)
        status = admin.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return f"no answer ({type(error).__name__})", False
    finally:
        admin.close()
    return f"status {status}", status == HTTPStatus.OK
