"""``loopguard healthcheck`` tells what a container's engine wants to know, in one line."""

import asyncio
import contextlib
import os
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE

import pytest

from loopguard import healthcheck
from loopguard.cli import main
from loopguard.healthcheck import reachable
from tests.end_to_end.command import serving
from tests.end_to_end.conftest import Guard
from tests.end_to_end.raw_caller import STREAM, connected
from tests.fake_openrouter import FakeOpenRouter, head, stall


async def checked(monkeypatch, capsys, *words: str, **environment: str) -> tuple[int, str]:
    """The status and the line of the command; keywords are environment variables."""
    with monkeypatch.context() as patch:
        for name, text in environment.items():
            patch.setenv(f"LOOPGUARD_{name.upper()}", text)
        status = await asyncio.to_thread(main, ["healthcheck", *words])
    written = capsys.readouterr()
    (line,) = (written.out + written.err).splitlines()
    return status, line


async def test_drain_is_alive_and_not_ready(monkeypatch, capsys) -> None:
    """It says well while loopguard serves; during a drain alive but not ready; then neither."""
    async with (
        FakeOpenRouter([[head(), stall]]) as fake,
        serving(fake.base_url, server__drain_s="600") as command,
        connected(command.port) as running,
    ):
        port = command.admin.rpartition(":")[2]
        origin = f"http://127.0.0.1:{port}"

        async def check(*words: str) -> tuple[int, str]:
            return await checked(monkeypatch, capsys, *words, server__admin_port=port)

        assert await check() == (0, f"{origin}/healthz: status 200")
        assert await check("--ready") == (0, f"{origin}/readyz: status 200")
        await running.send(STREAM)
        await fake.attempt(1)
        command.terminate()
        await command.line("draining")
        assert await check() == (0, f"{origin}/healthz: status 200")
        assert await check("--ready") == (1, f"{origin}/readyz: status 503")
        await command.kill()
        assert await check() == (1, f"{origin}/healthz: no answer (ConnectionRefusedError)")


async def test_file_names_the_port(guarded: Guard, monkeypatch, capsys, tmp_path) -> None:
    """It asks where the file says that operators look, unless a variable says otherwise."""
    path = tmp_path / "loopguard.toml"
    async with guarded([]) as ours:
        path.write_text(f"[server]\nadmin_port = {ours.loopguard.admin_port}\n[profiles.default]\n")
        assert (await checked(monkeypatch, capsys, "--config", str(path)))[0] == 0
        status, line = await checked(
            monkeypatch, capsys, "--config", str(path), server__admin_port="0"
        )
        assert (status, line) == (
            1,
            "http://127.0.0.1:0/healthz: the port is of the system's choice, so it cannot be asked",
        )


def has_ipv6() -> bool:
    """Whether this machine's loopback speaks it."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as there:
        there.bind(("::1", 0))
        return True
    return False


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="there is no IPv6 here")


@pytest.mark.parametrize("host", ["0.0.0.0", pytest.param("::", marks=needs_ipv6)])
async def test_all_addresses(guarded: Guard, monkeypatch, capsys, host: str) -> None:
    """A listener on all addresses is asked on loopback."""
    async with guarded([], server__admin_host=host) as ours:
        status, line = await checked(
            monkeypatch,
            capsys,
            server__admin_host=host,
            server__admin_port=str(ours.loopguard.admin_port),
        )
    loopback = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}[host]
    assert status == 0
    assert line == f"http://{loopback}:{ours.loopguard.admin_port}/healthz: status 200"


@pytest.mark.parametrize("host", ["localhost", "192.0.2.1", "::1", "loopguard.example"])
def test_one_address(host: str) -> None:
    """A listener on one address is asked there."""
    assert reachable(host) == host


async def test_silence_is_an_answer(monkeypatch, capsys) -> None:
    """A listener that says nothing is not well, and is not waited for long."""
    assert healthcheck.TIMEOUT_S < 3  # when whoever checks gives up
    monkeypatch.setattr(healthcheck, "TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        status, line = await checked(monkeypatch, capsys, server__admin_port=port)
    assert (status, line) == (1, f"http://127.0.0.1:{port}/healthz: no answer (TimeoutError)")


async def test_another_protocol(monkeypatch, capsys) -> None:
    """What is not HTTP is not well."""

    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH\r\n")
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        port = str(server.sockets[0].getsockname()[1])
        status, line = await checked(monkeypatch, capsys, server__admin_port=port)
    assert (status, line) == (1, f"http://127.0.0.1:{port}/healthz: no answer (BadStatusLine)")


async def test_refused_configuration(monkeypatch, capsys) -> None:
    """A configuration that is refused is not well either, with one line and status 1."""
    status, line = await checked(monkeypatch, capsys, server__admin_port="x", server__port="-1")
    fault = "server.port: must be 0 or more (set by LOOPGUARD_SERVER__PORT)"
    assert (status, line) == (1, f"the configuration is refused: {fault}")


async def test_imports_little() -> None:
    """Asked every few seconds it loads neither the proxy nor the ledger."""
    program = (
        "import sys; from loopguard.cli import main; main(['healthcheck']); "
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    environ = os.environ | {"LOOPGUARD_SERVER__ADMIN_PORT": "0"}
    ran = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, env=environ, stdout=PIPE, stderr=DEVNULL
    )
    loaded = (await ran.communicate())[0].decode().split()
    assert "pydantic" in loaded
    assert not {"aiohttp", "sqlalchemy", "uvloop"} & set(loaded)
