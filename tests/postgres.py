"""A PostgreSQL of the tests' own, from the system's binaries, as a user that is not root."""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.ports import free_port

BINARIES = Path("/usr/lib/postgresql")
DATABASE = "postgres"
START_S = 30.0


def binaries() -> Path | None:
    """The folder of the newest installed version, None where there is none."""
    found = [folder / "bin" for folder in BINARIES.glob("*") if (folder / "bin/initdb").exists()]
    return max(found, key=lambda folder: int(folder.parent.name), default=None)


class Postgres:
    """A running server.

    Attributes:
        port: on the loopback address.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self._bin = binaries()
        self._folder = folder
        self._user = _server_user()
        self.port = port
        self._server: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it takes connections."""
        options = ["-p", str(self.port), "-k", str(self._folder), "-h", "127.0.0.1", "-F"]
        with (self._folder / "log").open("ab") as log:
            self._server = subprocess.Popen(
                [self._bin / "postgres", "-D", self._folder / "data", *options],
                user=self._user,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + START_S
        while self._run("pg_isready", "-q", "-d", DATABASE, check=False).returncode:
            assert time.monotonic() < deadline, (self._folder / "log").read_text()
            time.sleep(0.05)  # a server says nowhere that it is up

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it, connections or not."""
        assert self._server is not None
        self._server.send_signal(how)
        self._server.wait()

    def empty_database(self) -> str:
        """The URL of the one database, emptied: making another one takes longer than a test."""
        emptied = "DROP SCHEMA public CASCADE; CREATE SCHEMA public"
        self._run("psql", "-q", "-d", DATABASE, "-c", emptied)
        return f"postgresql://loopguard@127.0.0.1:{self.port}/{DATABASE}"

    def _run(self, command: str, *arguments: str, check: bool = True):
        where = ["-h", "127.0.0.1", "-p", str(self.port), "-U", "loopguard"]
        return subprocess.run(
            [self._bin / command, *where, *arguments], check=check, stderr=subprocess.DEVNULL
        )


@contextlib.contextmanager
def postgres() -> Iterator[Postgres]:
    """Serve one until the block ends."""
    folder = Path(tempfile.mkdtemp(prefix="loopguard-postgres-"))
    user = _server_user()
    if user is not None:
        os.chown(folder, user, -1)
    options = ["-U", "loopguard", "-A", "trust", "-E", "UTF8", "--locale", "C", "--no-sync"]
    subprocess.run(
        [binaries() / "initdb", "-D", folder / "data", *options],
        user=user,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    server = Postgres(folder, free_port())
    server.start()
    try:
        yield server
    finally:
        server.stop(signal.SIGQUIT)  # which saves nothing
        shutil.rmtree(folder)


def _server_user() -> int | None:
    """PostgreSQL refuses to run as root; None is whoever runs the tests."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_uid
    raise LookupError("no user to run PostgreSQL as")
