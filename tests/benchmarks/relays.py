"""Everything that is measured, each started as its own documentation says, on one core."""

import json
import secrets
import shutil
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from string import Template
from tempfile import TemporaryDirectory

from tests.benchmarks.install import LITELLM, PORTKEY
from tests.benchmarks.launch import (
    CORES,
    RELAY_CORE,
    START_TIMEOUT_S,
    rss_bytes,
    started,
)
from tests.ports import free_port

CONFIGURATION = Path(__file__).parent / "configuration"


class AbsentError(Exception):
    """A relay is not installed here."""


@dataclass(frozen=True)
class Relay:
    """One that is measured.

    Attributes:
        port: where it is asked.
        pid: of its process, None where there is none in between.
        headers: what its callers ask with.
        admin_port: where it shows its metrics, None where it has none.
        idle_bytes: its memory before the first request.
    """

    name: str
    port: int
    pid: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    admin_port: int | None = None

    idle_bytes: int = 0


Starter = Callable[[str, int], AbstractContextManager[Relay]]
"""Takes the relay's name and the upstream's port."""


@contextmanager
def _direct(name: str, upstream_port: int) -> Iterator[Relay]:
    """Nobody in between."""
    yield Relay(name, upstream_port)


@contextmanager
def _passthrough(name: str, upstream_port: int) -> Iterator[Relay]:
    port = free_port()
    module = [sys.executable, "-m", "tests.benchmarks.passthrough"]
    command = [*module, str(port), f"http://127.0.0.1:{upstream_port}"]
    with started(command, port, [RELAY_CORE]) as pid:
        yield Relay(name, port, pid, idle_bytes=rss_bytes(pid))


DETECTION_OFF = {
    "LOOPGUARD_PROFILES__DEFAULT__LOOP_DETECTION__ENABLED": "false",
    "LOOPGUARD_PROFILES__DEFAULT__STRETCH_DETECTION__ENABLED": "false",
}


@contextmanager
def loopguard(
    name: str,
    upstream_port: int,
    *,
    relay: str = "live",
    module: Iterable[str] = ("loopguard",),
    workers: int = 1,
    cores: Iterable[int] = (RELAY_CORE,),
    **environment: str,
) -> Iterator[Relay]:
    """`loopguard serve` as it is shipped, but for what the environment says."""
    port, admin_port = free_port(), free_port()
    command = [sys.executable, "-m", *module, "serve", "--workers", str(workers)]
    with TemporaryDirectory() as folder:
        environment |= {
            "LOOPGUARD_SERVER__PORT": str(port),
            "LOOPGUARD_SERVER__ADMIN_PORT": str(admin_port),
            "LOOPGUARD_UPSTREAM__BASE_URL": f"http://127.0.0.1:{upstream_port}/v1",
            "LOOPGUARD_LEDGER__URL": f"sqlite:///{folder}/ledger.db",
        }
        with started(command, admin_port, cores, **environment) as pid:
            _wait_for_workers(admin_port, workers)
            headers = {"X-Loopguard-Relay": relay}
            yield Relay(name, port, pid, headers, admin_port, rss_bytes(pid))


def _wait_for_workers(admin_port: int, workers: int) -> None:
    """Return once all of them serve; operators are served before."""
    serving = f"\nloopguard_workers {workers}.0\n".encode()
    page = f"http://127.0.0.1:{admin_port}/metrics"
    while serving not in urllib.request.urlopen(page, timeout=START_TIMEOUT_S).read():
        time.sleep(0.05)


@contextmanager
def _debian(name: str, upstream_port: int, *, command: list[str]) -> Iterator[Relay]:
    """A proxy of Debian's, whose configuration stands beside this module."""
    if shutil.which(name) is None:
        raise AbsentError(f"{name}: apt-get install {name}")
    port = free_port()
    with TemporaryDirectory() as folder:
        written = Path(folder) / f"{name}.conf"
        template = Template((CONFIGURATION / written.name).read_text())
        places = {"folder": folder, "port": port, "upstream_port": upstream_port}
        written.write_text(template.substitute(places))
        with started([*command, str(written)], port, [RELAY_CORE]) as pid:
            yield Relay(name, port, pid, idle_bytes=rss_bytes(pid))


@contextmanager
def _litellm(name: str, upstream_port: int) -> Iterator[Relay]:
    if not LITELLM.is_installed:
        raise AbsentError(f"{name}: python -m tests.benchmarks.install {name}")
    port = free_port()
    model = {
        "model": "openai/*",
        "api_base": f"http://127.0.0.1:{upstream_port}/v1",
        "api_key": "none",
    }
    configuration = {"model_list": [{"model_name": "*", "litellm_params": model}]}
    with TemporaryDirectory() as folder:
        written = Path(folder) / "config.yaml"
        written.write_text(json.dumps(configuration))  # which is YAML
        command = [str(LITELLM.command), "--config", str(written), "--port", str(port)]
        command += ["--host", "127.0.0.1", "--num_workers", "1"]
        key = f"sk-{secrets.token_hex(32)}"  # without one it does not start
        environment = {
            "LITELLM_MASTER_KEY": key,
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it is fetched at the start
            "LITELLM_MODE": "PRODUCTION",
            "LITELLM_LOG": "ERROR",
        }
        headers = {"Authorization": f"Bearer {key}"}
        with started(command, port, [RELAY_CORE], **environment) as pid:
            yield Relay(name, port, pid, headers, idle_bytes=rss_bytes(pid))


@contextmanager
def _portkey(name: str, upstream_port: int) -> Iterator[Relay]:
    if not PORTKEY.is_installed:
        raise AbsentError(f"{name}: python -m tests.benchmarks.install {name}")
    port = free_port()
    headers = {
        "Authorization": "Bearer none",
        "x-portkey-provider": "openai",
        "x-portkey-custom-host": f"http://127.0.0.1:{upstream_port}/v1",
    }
    mended = str(CONFIGURATION / "portkey.mjs")
    command = ["node", "--import", mended, str(PORTKEY.command), f"--port={port}", "--headless"]
    environment = {"NODE_ENV": "production"}
    with started(command, port, [RELAY_CORE], **environment) as pid:
        yield Relay(name, port, pid, headers, idle_bytes=rss_bytes(pid))


STARTERS: Mapping[str, Starter] = {
    "direct": _direct,
    "passthrough": _passthrough,
    "nginx": partial(_debian, command=["nginx", "-e", "stderr", "-c"]),
    "haproxy": partial(_debian, command=["haproxy", "-db", "-f"]),
    "live": loopguard,
    "held": partial(loopguard, relay="hold"),
    "off": partial(loopguard, **DETECTION_OFF),
    "portkey": _portkey,
    "litellm": _litellm,
    "1 worker": partial(loopguard, cores=CORES),
    "2 workers": partial(loopguard, cores=CORES, workers=2),
}
