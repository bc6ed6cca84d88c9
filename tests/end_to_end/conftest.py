"""A guarded upstream for tests: the fake OpenRouter, and loopguard in front of it."""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import openai
import pytest

from loopguard.app import Api, Loopguard
from loopguard.proxy.record import ExchangeRecord
from loopguard.settings import load
from tests.fake_openrouter import FakeOpenRouter, Refusal
from tests.fake_openrouter.server import Answer

# Ports of the system's choice, waits that no test has to sit through, and no look-up unasked.
ENVIRONMENT = {
    "LOOPGUARD_SERVER__PORT": "0",
    "LOOPGUARD_SERVER__ADMIN_PORT": "0",
    "LOOPGUARD_RETRY__INITIAL_WAIT_S": "0.001",
    "LOOPGUARD_LEDGER__FIRST_LOOK_S": "3600",
}


@dataclass
class Guarded:
    """loopguard in front of a fake.

    Attributes:
        records: of the exchanges that have ended.
        ledger_url: of its ledger's database.
        config: its file, where it has one of its own.
    """

    fake: FakeOpenRouter
    loopguard: Loopguard
    records: list[ExchangeRecord] = field(default_factory=list)
    ledger_url: str = ""
    config: Path | None = None

    @property
    def api(self) -> Api:
        """What serves callers."""
        (worker,) = self.loopguard.fleet.workers
        assert isinstance(worker, Api)
        return worker

    @property
    def origin(self) -> str:
        """Where callers are served."""
        return f"http://127.0.0.1:{self.loopguard.api_port}"

    @property
    def admin(self) -> str:
        """Where operators look."""
        return f"http://127.0.0.1:{self.loopguard.admin_port}"

    def client(self, path: str = "/v1") -> openai.AsyncOpenAI:
        """A real client, which the test closes."""
        return openai.AsyncOpenAI(base_url=self.origin + path, api_key="sk-caller")


Guard = Callable[..., AbstractAsyncContextManager[Guarded]]


@pytest.fixture
def guarded(tmp_path: Path) -> Guard:
    """Start loopguard in front of a fake with a script; keywords are environment variables.

    With the text of a configuration it has a file of its own; else it is the shipped one.
    """

    @asynccontextmanager
    async def start(
        script: Iterable[Answer],
        lookups: Sequence[int | Refusal] = (),
        toml: str | None = None,
        **environment: str,
    ) -> AsyncIterator[Guarded]:
        config = None
        if toml is not None:
            config = tmp_path / "loopguard.toml"
            config.write_text(toml, "utf-8")
        async with FakeOpenRouter(script, lookups=lookups) as fake:
            environ = ENVIRONMENT | {
                "LOOPGUARD_UPSTREAM__BASE_URL": fake.base_url,
                "LOOPGUARD_LEDGER__URL": f"sqlite:///{tmp_path}/ledger.db",
            }
            environ |= {f"LOOPGUARD_{name.upper()}": value for name, value in environment.items()}
            records: list[ExchangeRecord] = []
            settings = load(config, environ)
            async with Loopguard(settings, records.append, config, environ) as loopguard:
                ledger = environ["LOOPGUARD_LEDGER__URL"]
                yield Guarded(fake, loopguard, records, ledger, config)

    return start
