"""The composition root: the only file that builds objects and joins them."""

import asyncio
import contextlib
import logging
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp import web
from prometheus_client import CollectorRegistry

from loopguard.billing.database import Database, LedgerTooNewError, LedgerUrlError
from loopguard.billing.keys import Keys
from loopguard.billing.ledger import Ledger
from loopguard.billing.look_up import look_up_at
from loopguard.billing.market import Market
from loopguard.billing.reconciler import LookPolicy, Reconciler
from loopguard.billing.runs import Runs
from loopguard.core.detection.detector import describe
from loopguard.metrics import Metrics
from loopguard.proxy.accounts import Accounts
from loopguard.proxy.admin import Admin
from loopguard.proxy.exchange import Shared
from loopguard.proxy.loop_memory import LoopMemory
from loopguard.proxy.record import ExchangeRecord
from loopguard.proxy.report import Report
from loopguard.proxy.routes import Routes
from loopguard.proxy.upstream import Upstream, environment_proxy
from loopguard.settings import ConfigurationError, Settings
from loopguard.settings import Ledger as LedgerSettings

_log = logging.getLogger("loopguard")

# Short enough to see a stall that a caller would feel, long enough to cost nothing.
_STALL_PROBE_S = 0.05

# A drained exchange has its last event written by then, unless its caller does not read.
_FAREWELL_S = 2.0


# An entry is leased for so many of the longest look-ups: its own, its settling, and clocks.
_LEASE_LOOKS = 3

# A database that answers later than that is away; it is tried again in the background.
_LAUNCH_WAIT_S = 3.0

_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Books:
    """The ledger, and what works on it.

    Attributes:
        ledger: written in the background.
        keys: that prices are asked for with.
        reconciler: asks for them.
    """

    ledger: Ledger
    keys: Keys
    reconciler: Reconciler


@contextlib.asynccontextmanager
async def open_books(settings: Settings, metrics: Metrics) -> AsyncIterator[Books]:
    """Open the ledger, ask for prices in the background, and write the last rows at the end.

    A database that is away is no reason not to serve: rows wait in memory.

    Raises:
        ConfigurationError: the ledger is one that this loopguard cannot use.
    """
    upstream = settings.upstream
    key = None if upstream.api_key is None else upstream.api_key.get_secret_value()
    policy = settings.ledger
    try:
        database = Database(ledger_url(policy))
        async with asyncio.timeout(_LAUNCH_WAIT_S):
            await database.migrate()
    except (LedgerUrlError, LedgerTooNewError) as error:
        raise ConfigurationError([f"ledger.url: {error}"]) from None
    except Exception:  # noqa: BLE001 - of whatever driver's family it is
        _log.warning("ledger: the database is away at the launch", exc_info=True)
    async with aiohttp.ClientSession(
        cookie_jar=aiohttp.DummyCookieJar(), proxy=environment_proxy(upstream.base_url)
    ) as session:
        ledger = Ledger(
            database,
            metrics,
            first_look_s=policy.first_look_s if policy.look_ups else None,
            lease_s=_LEASE_LOOKS * policy.look_up_timeout_s,
        )
        keys = Keys(key)
        reconciler = Reconciler(
            ledger,
            keys,
            look_up_at(session, upstream.base_url, policy.look_up_timeout_s)
            if policy.look_ups
            else None,
            LookPolicy(
                first_look_s=policy.first_look_s,
                longest_wait_s=policy.longest_wait_s,
                give_up_after_s=policy.give_up_after_s,
                concurrency=policy.concurrency,
            ),
            metrics,
            terms_of=Market(session, upstream.base_url, policy.look_up_timeout_s).terms,
            retention_s=policy.retention_days * _DAY_S or None,
        )
        ledger.start()
        reconciling = asyncio.create_task(reconciler.run(), name="reconciler")
        try:
            yield Books(ledger, keys, reconciler)
        finally:
            reconciling.cancel()
            await asyncio.gather(reconciling, return_exceptions=True)
            if not await ledger.close():
                _log.error("ledger: the last rows could not be written and are lost")


def ledger_url(ledger: LedgerSettings, environ: Mapping[str, str] = os.environ) -> str:
    """The URL of the ledger's database: the operator's, or of a file in the state folder."""
    if ledger.url is not None:
        return ledger.url.get_secret_value()
    home = environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    folder = environ.get("STATE_DIRECTORY") or Path(home) / "loopguard"
    return f"sqlite:///{Path(folder).absolute() / 'ledger.db'}"


class Loopguard:
    """The two listeners and all that serves them; an asynchronous context manager.

    Args:
        settings: the configuration.
        on_exchange: further reader of the records of ended exchanges.

    Attributes:
        api_port: where callers are served, once entered.
        admin_port: where operators look, once entered.
    """

    def __init__(
        self, settings: Settings, on_exchange: Callable[[ExchangeRecord], None] | None = None
    ) -> None:
        self._settings = settings
        self._on_exchange = on_exchange
        self.api_port = 0
        self.admin_port = 0

    async def __aenter__(self) -> Self:
        """Listen.

        Raises:
            OSError: an address cannot be bound.
            ConfigurationError: the ledger cannot be used.
        """
        settings = self._settings
        server = settings.server
        self._metrics = Metrics(CollectorRegistry())
        self._opened = contextlib.AsyncExitStack()
        books = await self._opened.enter_async_context(open_books(settings, self._metrics))
        self._upstream = Upstream(
            settings.upstream.base_url,
            None
            if settings.upstream.api_key is None
            else settings.upstream.api_key.get_secret_value(),
            settings.upstream.connect_timeout_s,
            self._metrics,
        )
        self._report = Report(self._metrics, time.time, self._on_exchange)
        shared = Shared(
            upstream=self._upstream,
            policy=settings.retry,
            loop_memory=LoopMemory(settings.loop_memory.ttl_s, time.monotonic),
            report=self._report,
            accounts=Accounts(books.ledger, books.keys),
            first_delta_timeout_s=settings.upstream.first_delta_timeout_s,
            keepalive_s=server.keepalive_s,
            max_event_bytes=server.max_line_bytes,
            max_held_bytes=server.max_held_bytes,
            draw=random.random,
            sleep=asyncio.sleep,
            wall_clock=time.time,
        )
        self._routes = Routes(
            shared,
            settings.profiles,
            settings.routes,
            client_tokens=[token.get_secret_value() for token in server.client_tokens],
            account_paths=settings.upstream.account_paths if settings.upstream.api_key else (),
            drain_s=server.drain_s,
        )
        self._metrics.watch_held_bytes(self._held_bytes)
        api = web.Application(client_max_size=server.max_body_bytes)
        api.router.add_route("*", r"/{path:[\s\S]*}", self._routes.handle)
        api.on_response_prepare.append(self._routes.end_connection)
        admin = Admin(
            self._metrics,
            Runs(books.ledger, books.reconciler),
            lambda: not self._routes.draining,
        ).application()
        # The caller's leaving is noticed in silent phases too (lessons.md 1).
        self._api = web.AppRunner(
            api, handler_cancellation=True, access_log=None, shutdown_timeout=_FAREWELL_S
        )
        self._admin = web.AppRunner(admin, access_log=None, shutdown_timeout=_FAREWELL_S)
        try:
            self.api_port = await _listen(self._api, server.host, server.port)
            self.admin_port = await _listen(self._admin, server.admin_host, server.admin_port)
        except BaseException:
            await self._close()
            raise
        self._stall_probe = asyncio.create_task(self._probe_stalls())
        self._announce()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stall_probe.cancel()
        await self._close()

    async def _close(self) -> None:
        await self._api.cleanup()
        await self._admin.cleanup()
        await self._opened.aclose()
        await self._upstream.__aexit__(None, None, None)

    def _announce(self) -> None:
        for warning in self._settings.warnings:
            _log.warning(warning)
        for name, profile in self._settings.profiles.items():
            if sentence := describe(profile.detection):
                _log.info("profile `%s`: %s", name, sentence)
        _log.info(
            "serving on %s:%d, for operators on %s:%d",
            self._settings.server.host,
            self.api_port,
            self._settings.server.admin_host,
            self.admin_port,
        )

    async def drain(self) -> None:
        """Take no further exchange, let the running ones end, end the rest after ``drain_s``."""
        _log.info("draining")
        server = self._settings.server
        await self._routes.drain(server.drain_delay_s, server.drain_s, _FAREWELL_S)

    def _held_bytes(self) -> int:
        return sum(exchange.held_bytes for exchange in self._routes.exchanges)

    async def _probe_stalls(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            asleep_at = loop.time()
            await asyncio.sleep(_STALL_PROBE_S)
            self._metrics.stalled_loop(loop.time() - asleep_at - _STALL_PROBE_S)


async def _listen(runner: web.AppRunner, host: str, port: int) -> int:
    """Serve on an address and return the port, which the system chooses where it is 0."""
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return int(runner.addresses[0][1])
