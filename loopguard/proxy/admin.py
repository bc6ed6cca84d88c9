"""The operators' listener: metrics, health, runs and reloads. Never on the API's port."""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from aiohttp import web
from prometheus_client import CollectorRegistry

from loopguard.metrics import exposition
from loopguard.proxy import access
from loopguard.proxy.answers import of_ledger, refusal
from loopguard.proxy.fleet import Fleet
from loopguard.proxy.in_use import InUse

_Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]

# What a person waits for without asking why; most prices need longer, some seconds suffice.
_SETTLE_S = 10.0

# What reading the ledger may take; a second is much for a run.
_READ_S = 5.0

# Longer than any price takes that ever comes.
_MAX_SETTLE_S = 3600.0


class Admin:
    """Answers operators.

    Args:
        registry: of the series that are shown.
        fleet: the workers that are asked.
        in_use: the configuration.
        console: the page for people.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        fleet: Fleet,
        in_use: InUse,
        console: web.Application,
    ) -> None:
        self._registry = registry
        self._fleet = fleet
        self._in_use = in_use
        self._console = console

    def application(self) -> web.Application:
        """The routes."""
        application = web.Application(middlewares=[self._named])
        application.router.add_get("/", _to_the_console)
        application.add_subapp("/console", self._console)
        application.router.add_get("/metrics", self._show_metrics)
        application.router.add_get("/healthz", self._healthz)
        application.router.add_get("/readyz", self._readyz)
        application.router.add_get("/runs/{run:.+}", self._show_run)
        application.router.add_post("/runs/{run:.+}/close", self._allowed(self._close_run))
        application.router.add_post("/config/reload", self._allowed(self._reload))
        return application

    @web.middleware
    async def _named(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Answer nothing to a page that points a name of its own at this machine."""
        if access.knows_host(request, self._in_use.settings.server.admin_host):
            return await handler(request)
        return refusal(421, "a listener on loopback is asked by a name of this machine alone")

    def _allowed(self, handler: _Handler) -> _Handler:
        """Let a request change something where it may."""

        async def guarded(request: web.Request) -> web.StreamResponse:
            if refused := access.refused_change(request, self._in_use.admin_token):
                return refused
            return await handler(request)

        return guarded

    async def _reload(self, _: web.Request) -> web.Response:
        reloaded = await self._in_use.reload()
        if reloaded.faults:
            return web.json_response({"reloaded": False, "faults": reloaded.faults}, status=422)
        return web.json_response(
            {
                "reloaded": True,
                "warnings": reloaded.warnings,
                "workers": reloaded.workers,
                "using": reloaded.using,
            }
        )

    async def _show_metrics(self, _: web.Request) -> web.Response:
        await self._fleet.refresh()
        return web.Response(
            body=exposition(self._registry),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.json_response({"alive": True})

    async def _readyz(self, _: web.Request) -> web.Response:
        ready = self._fleet.ready
        return web.json_response({"ready": ready}, status=200 if ready else 503)

    async def _show_run(self, request: web.Request) -> web.Response:
        return await of_ledger(self._fleet.run_figures(request.match_info["run"]), _READ_S)

    async def _close_run(self, request: web.Request) -> web.Response:
        try:
            within_s = float(request.query.get("within_s", _SETTLE_S))
        except ValueError:
            within_s = -1.0
        if not 0 <= within_s <= _MAX_SETTLE_S:
            return refusal(400, f"within_s is no number of seconds from 0 to {_MAX_SETTLE_S:g}")
        closed = self._fleet.close_run(request.match_info["run"], within_s)
        return await of_ledger(closed, within_s + _READ_S)


async def _to_the_console(_: web.Request) -> web.StreamResponse:
    raise web.HTTPFound("/console/")
