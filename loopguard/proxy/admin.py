"""The operators' listener: metrics and health. Never on the API's port."""

from collections.abc import Callable

from aiohttp import web

from loopguard.metrics import Metrics


class Admin:
    """Answers operators.

    Args:
        metrics: what is shown.
        ready: whether further exchanges are taken.
    """

    def __init__(self, metrics: Metrics, ready: Callable[[], bool]) -> None:
        self._metrics = metrics
        self._ready = ready

    def application(self) -> web.Application:
        """The routes."""
        application = web.Application()
        application.router.add_get("/metrics", self._show_metrics)
        application.router.add_get("/healthz", self._healthz)
        application.router.add_get("/readyz", self._readyz)
        return application

    async def _show_metrics(self, _: web.Request) -> web.Response:
        return web.Response(
            body=self._metrics.exposition(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.json_response({"alive": True})

    async def _readyz(self, _: web.Request) -> web.Response:
        ready = self._ready()
        return web.json_response({"ready": ready}, status=200 if ready else 503)
