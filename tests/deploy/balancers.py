"""The shipped configurations of HAProxy and nginx, run by the system's binaries."""

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from tests.ports import free_port

DEPLOY = Path(__file__).parents[2] / "deploy"
HAPROXY = DEPLOY / "haproxy" / "haproxy.cfg"
NGINX = DEPLOY / "nginx" / "loopguard.conf"

START_S = 10.0

Replica = tuple[int, int]
"""Its ports: for callers, for operators."""

Balancer = Callable[[Sequence[Replica]], AbstractAsyncContextManager[int]]
"""Runs in front of two replicas; gives the port for callers."""


def installed(command: str) -> bool:
    """Whether the system has it, also where it is not on the path of a user."""
    return shutil.which(command, path=_path()) is not None


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def haproxy_environment(port: int, replicas: Sequence[Replica]) -> dict[str, str]:
    """What the shipped configuration reads from its environment."""
    environ = {"LOOPGUARD_BIND": f"127.0.0.1:{port}"}
    for name, (api_port, admin_port) in zip("AB", replicas, strict=True):
        environ[f"LOOPGUARD_{name}"] = f"127.0.0.1:{api_port}"
        environ[f"LOOPGUARD_{name}_ADMIN_PORT"] = str(admin_port)
    return environ


@asynccontextmanager
async def haproxy(replicas: Sequence[Replica]) -> AsyncIterator[int]:
    """HAProxy, with the file as it is."""
    port = free_port()
    words = ["haproxy", "-db", "-f", str(HAPROXY)]
    async with _running(words, port, haproxy_environment(port, replicas)):
        yield port


@asynccontextmanager
async def nginx(replicas: Sequence[Replica]) -> AsyncIterator[int]:
    """nginx, with the file as it is but for its addresses."""
    async with nginx_told(replicas) as (port, _):
        yield port


@asynccontextmanager
async def nginx_told(
    replicas: Sequence[Replica],
) -> AsyncIterator[tuple[int, Callable[[Replica | None], Awaitable[None]]]]:
    """The same, with what marks a replica `down`, or none, and reloads."""
    port = free_port()
    with nginx_folder(port, replicas) as folder:
        words = ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", "stderr"]
        site = folder / "site.conf"
        all_up = site.read_text()

        async def mark_down(replica: Replica | None) -> None:
            told = (
                all_up
                if replica is None
                else all_up.replace(f":{replica[0]} ", f":{replica[0]} down ")
            )
            site.write_text(told)
            reloading = await asyncio.create_subprocess_exec(
                *words, "-s", "reload", env=os.environ | {"PATH": _path()}
            )
            assert await reloading.wait() == 0

        async with _running(words, port, {}):
            yield port, mark_down


BALANCERS: dict[str, Balancer] = {"haproxy": haproxy, "nginx": nginx}


@contextlib.contextmanager
def nginx_folder(port: int, replicas: Sequence[Replica]):
    """A folder with the site and the frame that Debian's nginx.conf is to it."""
    site = NGINX.read_text("utf-8")
    addresses = {"listen 127.0.0.1:8000;": f"listen 127.0.0.1:{port};"}
    for shipped, (api_port, _) in zip((8080, 8082), replicas, strict=True):
        addresses[f"server 127.0.0.1:{shipped} "] = f"server 127.0.0.1:{api_port} "
    for shipped, tried in addresses.items():
        assert site.count(shipped) == 1, shipped
        site = site.replace(shipped, tried)
    with tempfile.TemporaryDirectory(prefix="loopguard-nginx-") as name:
        folder = Path(name)
        (folder / "site.conf").write_text(site)
        # Its workers are of another user where the tests are root's.
        folder.chmod(0o755)
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        places = "".join(f"{kind}_temp_path {folder}/{kind}; " for kind in kinds)
        (folder / "nginx.conf").write_text(
            f"daemon off; pid {folder}/pid; events {{}}\n"
            f"http {{ access_log off; {places} include {folder}/site.conf; }}\n"
        )
        yield folder


@asynccontextmanager
async def _running(
    words: Sequence[str], port: int, environ: Mapping[str, str]
) -> AsyncIterator[None]:
    """The command in the foreground, from its first open port to its end."""
    with tempfile.TemporaryFile() as log:
        running = await asyncio.create_subprocess_exec(
            *words, env=os.environ | environ | {"PATH": _path()}, stdout=log, stderr=log
        )
        try:
            async with asyncio.timeout(START_S):
                while not await _answers(port):
                    log.seek(0)
                    assert running.returncode is None, log.read().decode()
                    await asyncio.sleep(0.02)  # neither says when it listens
            yield
        finally:
            if running.returncode is None:
                running.terminate()
            await running.wait()


async def _answers(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
