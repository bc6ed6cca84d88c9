"""Ports for programs that have to be told theirs."""

import contextlib
import random
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """A port of loopback that was free just now, and that the system gives to no connection.

    Or it would be gone, now and then, before its program listens, or while that restarts.
    """
    given = _RANGE.read_text().split() if _RANGE.exists() else ("32768", "60999")
    first, last = map(int, given)
    ports = [*range(10_000, first), *range(last + 1, 65_536)] or range(10_000, 65_536)
    while True:
        port = random.choice(ports)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
