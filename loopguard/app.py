"""The composition root: the only file that builds objects and joins them."""

import asyncio
import contextlib
import logging
import os
import random
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import aiohttp
from aiohttp import web
from prometheus_client import CollectorRegistry

from loopguard.billing.database import Database, LedgerTooNewError, LedgerUrlError
from loopguard.billing.figures import run_figures
from loopguard.billing.keys import Keys
from loopguard.billing.ledger import Ledger
from loopguard.billing.look_up import look_up_at
from loopguard.billing.market import Market
from loopguard.billing.reconciler import LookPolicy, Reconciler
from loopguard.console.configuration import Configuration
from loopguard.console.now import Now
from loopguard.console.pages import Console
from loopguard.console.thrown_away import ThrownAway
from loopguard.errors import ModelResponseLoop
from loopguard.metrics import CommandMetrics, Metrics, read_files
from loopguard.proxy.accounts import Accounts
from loopguard.proxy.admin import Admin
from loopguard.proxy.exchange import Shared, TellLooped
from loopguard.proxy.fleet import Fleet
from loopguard.proxy.in_use import InUse, announce
from loopguard.proxy.later import Later
from loopguard.proxy.listener import BACKLOG, BoundedRunner, Bounds, connections_that_fit
from loopguard.proxy.loop_memory import LoopMemory
from loopguard.proxy.record import ExchangeRecord
from loopguard.proxy.report import Report
from loopguard.proxy.routes import Routes, Service
from loopguard.proxy.sight import Sights
from loopguard.proxy.upstream import Upstream, environment_proxy
from loopguard.settings import ConfigurationError, Settings, load
from loopguard.settings import Ledger as LedgerSettings
from loopguard.workers import Workers

if TYPE_CHECKING:
    from loopguard.proxy.traces import Traces

_log = logging.getLogger("loopguard")

# Short enough to see a stall that a caller would feel, long enough to cost nothing.
_STALL_PROBE_S = 0.05

# A drained exchange has its last event written by then, unless its caller does not read.
_FAREWELL_S = 2.0


# How long the figures of a run wait for rows on their way, which are written twice a second.
_FLUSH_S = 1.0

# An entry is leased for so many of the longest look-ups: its own, its settling, and clocks.
_LEASE_LOOKS = 3

# A database that answers later than that is away; it is tried again in the background.
_LAUNCH_WAIT_S = 3.0

_DAY_S = 86_400.0

# Of a few people and what scrapes; so many browsers and probes are a fault.
_MAX_OPERATORS = 512


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
    async with _asking(upstream.base_url) as session:
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


def _asking(base_url: str) -> aiohttp.ClientSession:
    """Connections for what loopguard asks of an upstream by itself, without anybody's cookies."""
    return aiohttp.ClientSession(
        cookie_jar=aiohttp.DummyCookieJar(), proxy=environment_proxy(base_url)
    )


def _open_traces(base_url: str) -> "Traces":
    """Begin to send spans.

    Raises:
        ConfigurationError: what makes them is not installed.
    """
    try:
        # Who sends no spans need not install, and pays nothing for, what makes them.
        from loopguard.proxy.traces import Traces  # noqa: PLC0415
    except ModuleNotFoundError:
        raise ConfigurationError(
            ["traces.enabled: OpenTelemetry is not installed; install loopguard[otel]"]
        ) from None
    return Traces(base_url)


@contextlib.asynccontextmanager
async def open_console(
    in_use: InUse, fleet: Fleet, file: Configuration
) -> AsyncIterator[web.Application]:
    """Open the console, which reads the ledger by itself: the workers may be other processes.

    Args:
        in_use: the configuration.
        fleet: the workers that are asked.
        file: of the configuration.

    Raises:
        ConfigurationError: the ledger is one that this loopguard cannot use.
    """
    settings = in_use.settings
    try:
        database = Database(ledger_url(settings.ledger))
    except LedgerUrlError as error:
        raise ConfigurationError([f"ledger.url: {error}"]) from None
    async with _asking(settings.upstream.base_url) as session:
        market = Market(session, settings.upstream.base_url, settings.ledger.look_up_timeout_s)
        console = Console(
            Now(fleet.sights),
            ThrownAway(database, market.terms),
            file,
            in_use,
        )
        try:
            yield console.application()
        finally:
            await database.close()


def ledger_url(ledger: LedgerSettings, environ: Mapping[str, str] = os.environ) -> str:
    """The URL of the ledger's database: the operator's, or of a file in the state folder.

    Raises:
        LedgerUrlError: there is neither.
    """
    if ledger.url is not None:
        return ledger.url.get_secret_value()
    return f"sqlite:///{_state_folder(environ).absolute() / 'ledger.db'}"


def _state_folder(environ: Mapping[str, str]) -> Path:
    if named := environ.get("STATE_DIRECTORY"):
        return Path(named)
    if states := environ.get("XDG_STATE_HOME"):
        return Path(states) / "loopguard"
    try:
        return Path.home() / ".local" / "state" / "loopguard"
    except RuntimeError:
        raise LedgerUrlError(
            "no database is named and the user has no home; name a folder in STATE_DIRECTORY"
        ) from None


class Api:
    """What serves callers in one event loop, a `loopguard.proxy.fleet.Worker`.

    An asynchronous context manager; callers reach it once it listens, or is given connections.

    Args:
        settings: the configuration.
        metrics: what is counted.
        tell_looped: tells the other workers what this one remembers.
        on_exchange: further reader of the records of ended exchanges.
    """

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        tell_looped: TellLooped,
        on_exchange: Callable[[ExchangeRecord], None] | None = None,
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._tell_looped = tell_looped
        self._on_exchange = on_exchange
        self._opened = contextlib.AsyncExitStack()
        self._upstreams = contextlib.AsyncExitStack()
        self._taking: set[asyncio.Task[object]] = set()

    @property
    def connections(self) -> int:
        """How many callers' connections are open."""
        return self._runner.connections

    async def __aenter__(self) -> Self:
        """Open the ledger and make everything ready.

        Raises:
            ConfigurationError: the ledger cannot be used.
        """
        settings = self._settings
        server = settings.server
        readers = [] if self._on_exchange is None else [self._on_exchange]
        if settings.traces.enabled:
            traces = _open_traces(settings.upstream.base_url)
            self._opened.push_async_callback(asyncio.to_thread, traces.close)
            readers.append(traces.record)
        self._books = await self._opened.enter_async_context(open_books(settings, self._metrics))
        await self._opened.enter_async_context(self._upstreams)
        self._upstream = await self._open_upstream(settings)
        self._later = Later()
        self._opened.callback(self._later.catch_up)
        self._report = Report(self._metrics, readers)
        self._loop_memory = LoopMemory(settings.loop_memory.ttl_s, time.monotonic)
        self._routes = Routes(self._service(settings))
        application = web.Application(client_max_size=server.max_body_bytes)
        application.router.add_route("*", r"/{path:[\s\S]*}", self._routes.handle)
        application.on_response_prepare.append(self._routes.end_connection)
        # The caller's leaving is noticed in silent phases too (lessons.md 1).
        fitting = connections_that_fit(server.max_connections)
        if fitting < server.max_connections:
            _log.warning("server.max_connections: the limit of open files has room for %d", fitting)
        self._runner = BoundedRunner(
            application,
            Bounds(fitting, server.head_timeout_s, server.idle_timeout_s),
            self._metrics,
            handler_cancellation=True,
            access_log=None,
            shutdown_timeout=_FAREWELL_S,
        )
        await self._runner.setup()
        self._opened.push_async_callback(self._runner.cleanup)
        self._stall_probe = asyncio.create_task(self._probe_stalls())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stall_probe.cancel()
        await self._opened.aclose()

    async def _open_upstream(self, settings: Settings) -> Upstream:
        """Open one, which stays: exchanges that began with it may run for long."""
        upstream = settings.upstream
        return await self._upstreams.enter_async_context(
            Upstream(
                upstream.base_url,
                None if upstream.api_key is None else upstream.api_key.get_secret_value(),
                upstream.connect_timeout_s,
                self._metrics,
            )
        )

    def _service(self, settings: Settings) -> Service:
        server, upstream = settings.server, settings.upstream
        return Service(
            Shared(
                upstream=self._upstream,
                policy=settings.retry,
                loop_memory=self._loop_memory,
                tell_looped=self._tell_looped,
                report=self._report,
                accounts=Accounts(self._books.ledger, self._books.keys),
                later=self._later,
                first_delta_timeout_s=upstream.first_delta_timeout_s,
                keepalive_s=server.keepalive_s,
                max_event_bytes=server.max_line_bytes,
                max_held_bytes=server.max_held_bytes,
                draw=random.random,
                sleep=asyncio.sleep,
                wall_clock=time.time,
            ),
            settings.profiles,
            settings.routes,
            client_tokens=[token.get_secret_value() for token in server.client_tokens],
            lends_key=upstream.api_key is not None,
            account_paths=upstream.account_paths,
            body_timeout_s=server.body_timeout_s,
            drain_s=server.drain_s,
        )

    async def listen(self, bound: Iterable[socket.socket]) -> None:
        """Take callers at these addresses.

        Raises:
            OSError: somebody else listens there.
        """
        for place in bound:
            await web.SockSite(self._runner, place, backlog=BACKLOG).start()

    def take(self, connection: socket.socket) -> None:
        """Serve a connection that was accepted elsewhere."""
        if self._runner.server is None:
            raise RuntimeError("not entered, or already left")
        connection.settimeout(0)
        loop = asyncio.get_running_loop()
        taking = loop.create_task(loop.connect_accepted_socket(self._runner.server, connection))
        self._taking.add(taking)
        taking.add_done_callback(self._taking.discard)

    async def sights(self) -> Sights:
        """The exchanges in flight."""
        return self._routes.sights()

    async def refresh(self) -> None:
        """Count what has ended, and sum up what is held back, which changes with every chunk."""
        self._later.catch_up()
        self._metrics.bytes_held(sum(exchange.held_bytes for exchange in self._routes.exchanges))

    async def flush(self) -> None:
        """Write the rows for the ledger that are still in memory, within reason."""
        self._later.catch_up()
        await self._books.ledger.flush(_FLUSH_S)

    async def settle(self, run: str, within_s: float) -> None:
        """Ask for the prices that a run owes, with the keys that were seen here."""
        await self._books.reconciler.settle(run, within_s)

    async def run_figures(self, run: str) -> dict[str, object]:
        """The figures of a run, as `loopguard.billing.figures.run_figures` names them."""
        return await run_figures(self._books.ledger.database, run)

    async def looped(self, request: bytes, error: ModelResponseLoop, replies: int) -> None:
        """A request has cost another worker so many looping replies, and this error."""
        self._loop_memory.remember(request, error, replies)

    async def use(self, settings: Settings) -> None:
        """Serve what comes from now on by this configuration; what runs keeps its own.

        Args:
            settings: as `loopguard.settings.adopted` makes them of those in use.
        """
        held, self._settings = self._settings, settings
        if settings.upstream != held.upstream:
            self._upstream = await self._open_upstream(settings)
            if settings.upstream.api_key is not None:
                self._books.keys.use(settings.upstream.api_key.get_secret_value())
        if settings.loop_memory != held.loop_memory:
            self._loop_memory = LoopMemory(settings.loop_memory.ttl_s, time.monotonic)
        self._routes.service = self._service(settings)

    async def drain(self) -> None:
        """Take no further exchange, let the running ones end, end the rest after ``drain_s``."""
        _log.info("draining")
        server = self._settings.server
        await self._routes.drain(server.drain_delay_s, server.drain_s, _FAREWELL_S)

    async def _probe_stalls(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            asleep_at = loop.time()
            await asyncio.sleep(_STALL_PROBE_S)
            self._metrics.stalled_loop(loop.time() - asleep_at - _STALL_PROBE_S)


class Loopguard:
    """The two listeners and all that serves them; an asynchronous context manager.

    Args:
        settings: the configuration.
        on_exchange: further reader of the records of ended exchanges, of a single worker's.
        path: of the configuration's file; None is the shipped one.
        environ: stands over it.

    Attributes:
        fleet: what serves callers.
        in_use: the configuration.
        api_port: where callers are served, once entered.
        admin_port: where operators look, once entered.
    """

    def __init__(
        self,
        settings: Settings,
        on_exchange: Callable[[ExchangeRecord], None] | None = None,
        path: Path | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._file = Configuration(path, environ)
        self._on_exchange = on_exchange
        self._opened = contextlib.AsyncExitStack()
        self._registry = CollectorRegistry()
        self._metrics = CommandMetrics(self._registry)
        self.fleet = Fleet()
        self.in_use = InUse(settings, lambda: load(path, environ), self.fleet, self._metrics)
        self.api_port = 0
        self.admin_port = 0

    async def __aenter__(self) -> Self:
        """Listen.

        Raises:
            OSError: an address cannot be bound.
            ConfigurationError: the ledger cannot be used.
            CannotStart: a worker ended at once.
        """
        try:
            await self._open()
        except BaseException:
            await self._opened.aclose()
            raise
        announce(self.in_use.settings)
        server = self.in_use.settings.server
        _log.info(
            "serving on %s:%d, for operators on %s:%d",
            server.host,
            self.api_port,
            server.admin_host,
            self.admin_port,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._opened.aclose()

    async def _open(self) -> None:
        settings = self.in_use.settings
        server = settings.server
        bound = await _bind(server.host, server.port)
        for place in bound:
            self._opened.callback(place.close)
        self.api_port = bound[0].getsockname()[1]
        operators = await _bind(server.admin_host, server.admin_port)
        console = await self._opened.enter_async_context(
            open_console(self.in_use, self.fleet, self._file)
        )
        admin = BoundedRunner(
            Admin(self._registry, self.fleet, self.in_use, console).application(),
            Bounds(_MAX_OPERATORS, server.head_timeout_s, server.idle_timeout_s),
            self._metrics,
            access_log=None,
            shutdown_timeout=_FAREWELL_S,
        )
        await admin.setup()
        self._opened.push_async_callback(admin.cleanup)
        for place in operators:
            await web.SockSite(admin, place, backlog=BACKLOG).start()
        self.admin_port = operators[0].getsockname()[1]
        if server.workers > 1:
            workers = Workers(self.in_use, self.fleet, self._metrics, bound)
            await self._opened.enter_async_context(workers)
            read_files(self._registry, workers.folder)
            return
        api = Api(settings, Metrics(self._registry), _nobody_to_tell, self._on_exchange)
        await self._opened.enter_async_context(api)
        await api.listen(bound)
        self.fleet.workers.append(api)
        self._metrics.workers_serve(1)

    async def drain(self) -> None:
        """Take no further exchange, let the running ones end, end the rest after ``drain_s``."""
        await self.fleet.drain()


async def _nobody_to_tell(request: bytes, error: ModelResponseLoop, replies: int) -> None:
    """A process alone has nobody else to remember what has looped."""


async def _bind(host: str, port: int) -> list[socket.socket]:
    """Sockets at every address of a host, chosen as the event loop does; they do not listen yet.

    Raises:
        OSError: an address cannot be bound.
    """
    loop = asyncio.get_running_loop()
    server = await loop.create_server(asyncio.Protocol, host, port, start_serving=False)
    bound = [socket.socket(fileno=os.dup(place.fileno())) for place in server.sockets]
    server.close()
    return bound
