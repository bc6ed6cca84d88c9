"""The console's routes: the page and its parts, what it reads, and what it changes."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, TypeAlias

from aiohttp import BodyPartReader, hdrs, web

from loopguard.console import trial
from loopguard.console.configuration import Configuration, FileChanged, read_changes, told
from loopguard.console.now import Now
from loopguard.console.thrown_away import ThrownAway
from loopguard.proxy import access
from loopguard.proxy.answers import of_ledger, refusal
from loopguard.proxy.in_use import InUse
from loopguard.scan.page import STATIC as SCAN
from loopguard.settings import DEFAULT_PROFILE, ConfigurationError

Json: TypeAlias = dict[str, Any]

STATIC = Path(__file__).with_name("static")

# The drawing of replies is shared with the page of `loopguard scan`.
_DRAWING = [SCAN / name for name in ("curve.js", "reply.js", "curve.css")]
_PARTS = {path.name: path for path in (*STATIC.iterdir(), *_DRAWING)}

# Nothing but the page's own files, and no text that becomes markup.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}

MAX_PAGES = 64
"""Pages open at once: more than a team has screens, and half of what the listener takes."""

_READ_S = 5.0

_log = logging.getLogger("loopguard")


class Console:
    """Serves the console below ``/console``.

    Args:
        now: the exchanges in flight.
        thrown_away: what the ledger says.
        configuration: the operator's file.
        in_use: says what a change must present, and reads the file again once it is written.
    """

    def __init__(
        self,
        now: Now,
        thrown_away: ThrownAway,
        configuration: Configuration,
        in_use: InUse,
    ) -> None:
        self._now = now
        self._thrown_away = thrown_away
        self._configuration = configuration
        self._in_use = in_use
        self._trying = asyncio.Lock()
        self._applying = asyncio.Lock()

    def application(self) -> web.Application:
        """The routes, to be mounted at ``/console``."""
        application = web.Application(middlewares=[self._guard])
        application.on_response_prepare.append(_protect)
        application.on_shutdown.append(self._end_streams)
        router = application.router
        router.add_get("", _to_the_page)
        router.add_get("/", _show_page)
        router.add_get("/now", self._stream)
        router.add_get("/replies", self._show_replies)
        router.add_get("/figures", self._show_figures)
        router.add_get("/configuration", self._show_configuration)
        router.add_post("/configuration/judge", self._judge)
        router.add_post("/configuration/try", self._try)
        router.add_post("/configuration/apply", self._apply)
        router.add_get("/{part}", _show_part)
        return application

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if request.method == hdrs.METH_POST and not access.is_same_origin(request):
            return refusal(403, "only the console's own page may ask for this")
        try:
            return await handler(request)
        except ConfigurationError as error:
            return web.json_response({"faults": error.faults}, status=422)

    async def _end_streams(self, _: web.Application) -> None:
        self._now.close()

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        """One server-sent event a second, until the page is left."""
        if self._now.followers >= MAX_PAGES:
            return refusal(503, "too many pages are open")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        with suppress(ConnectionResetError):
            async with aclosing(self._now.follow()) as events:
                async for event in events:
                    await response.write(event)
        return response

    async def _show_replies(self, request: web.Request) -> web.Response:
        query = request.query
        latest = self._thrown_away.latest(query.get("model"), query.get("profile"))
        return await of_ledger(latest, _READ_S)

    async def _show_figures(self, _: web.Request) -> web.Response:
        return await of_ledger(self._thrown_away.figures(), _READ_S)

    async def _show_configuration(self, request: web.Request) -> web.Response:
        token = self._in_use.admin_token
        return web.json_response(
            {
                "may_change": access.may_change(request, token),
                "takes_token": token is not None,
                **self._configuration.form(),
            }
        )

    async def _judge(self, request: web.Request) -> web.Response:
        """Say whether a draft would be launched."""
        draft = self._configuration.draft(read_changes((await _object(request)).get("changes")))
        return web.json_response({"faults": [], "toml": draft.tables, **told(draft.settings)})

    async def _try(self, request: web.Request) -> web.Response:
        """Judge a reply by a profile of a draft."""
        fields, reply, name = await _read_trial(request)
        draft = self._configuration.draft(read_changes(fields.get("changes")))
        profile = draft.settings.profiles.get(str(fields.get("profile", DEFAULT_PROFILE)))
        if profile is None:
            raise ConfigurationError(["no profile has this name"])
        if not profile.detection.armed:
            raise ConfigurationError([f"profile `{profile.name}`: no rule is armed to judge by"])
        try:
            async with self._trying:
                return web.json_response(await trial.judged(reply, name, profile.detection))
        except trial.TrialFailed as failed:
            return refusal(422, str(failed))

    async def _apply(self, request: web.Request) -> web.Response:
        """Write a draft into the file, and serve what comes from now on by it."""
        if refused := access.refused_change(request, self._in_use.admin_token):
            return refused
        asked = await _object(request)
        changes, version = read_changes(asked.get("changes")), str(asked.get("version"))
        async with self._applying:
            try:
                kept = await asyncio.to_thread(self._configuration.write, changes, version)
            except FileChanged:
                return refusal(409, "the file has been changed meanwhile; undo all reads it again")
            except OSError as error:
                return refusal(409, f"the file cannot be written: {error.strerror or error}")
            _log.info("the configuration was changed in the console; the old one is %s", kept)
            reloaded = await self._in_use.reload()
        if reloaded.faults:
            raise ConfigurationError(reloaded.faults)
        form = self._configuration.form() | {"warnings": reloaded.warnings}
        return web.json_response({"kept": str(kept), **form})


async def _protect(_: web.Request, response: web.StreamResponse) -> None:
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)


async def _to_the_page(request: web.Request) -> web.StreamResponse:
    raise web.HTTPPermanentRedirect(f"{request.path}/")


async def _show_page(_: web.Request) -> web.FileResponse:
    return web.FileResponse(STATIC / "index.html")


async def _show_part(request: web.Request) -> web.StreamResponse:
    part = _PARTS.get(request.match_info["part"])
    return web.FileResponse(part) if part is not None else refusal(404, "no such page")


async def _object(request: web.Request) -> Json:
    """The JSON object that a request holds.

    Raises:
        web.HTTPBadRequest: it holds none.
    """
    try:
        told = json.loads(await request.read())
    except ValueError:
        told = None
    if not isinstance(told, dict):
        raise web.HTTPBadRequest(text="no JSON object")
    return told


async def _read_trial(request: web.Request) -> tuple[Json, bytes, str]:
    """A trial's form: the draft and the profile, the reply, and the name of its file.

    Raises:
        web.HTTPBadRequest: it is of another form.
        web.HTTPRequestEntityTooLarge: the reply is too long.
    """
    if request.content_type != "multipart/form-data":
        raise web.HTTPBadRequest(text="no form")
    fields: Json = {}
    reply, name = b"", ""
    try:
        async for part in await request.multipart():
            if not isinstance(part, BodyPartReader):
                raise web.HTTPBadRequest(text="a part of parts")
            content = bytearray()
            while chunk := await part.read_chunk():
                content += chunk
                if len(content) > trial.MAX_TRIAL_BYTES:
                    raise web.HTTPRequestEntityTooLarge(trial.MAX_TRIAL_BYTES, len(content))
            if part.name == "reply":
                reply, name = bytes(content), part.filename or "reply"
            elif part.name == "draft":
                fields = json.loads(content)
    except ValueError:
        raise web.HTTPBadRequest(text="no form") from None
    if not isinstance(fields, dict):
        raise web.HTTPBadRequest(text="no draft")
    return fields, reply, name
