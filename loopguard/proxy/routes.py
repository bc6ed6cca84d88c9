"""From a request's path to what serves it: the guard, or the plain way through.

A path is matched in its plainest spelling, so that no spelling of a guarded path that the upstream
might understand gets past the guard.
"""

import asyncio
import contextlib
import hmac
import re
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from heapq import nsmallest
from typing import NamedTuple
from urllib.parse import unquote

from aiohttp import web

from loopguard.core.dialects import DIALECTS, Dialect, chat
from loopguard.core.profile import Profile, Relay
from loopguard.errors import (
    BodyTooLarge,
    Draining,
    Forbidden,
    InternalFault,
    InvalidRequest,
    LoopguardError,
    PathNotFound,
    Unauthorized,
)
from loopguard.proxy import headers as crossing
from loopguard.proxy.caller import CallerGone, error_response
from loopguard.proxy.exchange import Exchange, Shared
from loopguard.proxy.listener import arriving
from loopguard.proxy.passthrough import pass_through
from loopguard.proxy.sight import SHOWN_EXCHANGES, Sights
from loopguard.settings import DEFAULT_PROFILE, Route

# A fragment has no place in a request; the upstream would be sent what stands before it.
_PATH = re.compile(r"(?:/profiles/(?P<profile>[^/]*))?(?:/api)?/v1(?P<rest>/[^#]*)")

# Content codings, and zlib's sign that it is to find out which of the two it is.
_PACKED = ("gzip", "x-gzip", "deflate")
_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32

# Where some servers cut a segment: parameters, a second query, spaces and controls.
_AFTER_A_NAME = re.compile(r"[;?#\x00-\x20].*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Service:
    """How requests are served; another configuration is another one.

    Attributes:
        shared: what all exchanges share.
        profiles: by name, one of them ``default``.
        routes: the first whose glob matches the model names the profile.
        client_tokens: what a caller must present one of; none asked for where it is empty.
        lends_key: whether callers are served with the operator's key.
        account_paths: refused then, and whatever is below them.
        body_timeout_s: what a body may make us wait, see `loopguard.proxy.listener.arriving`.
        drain_s: told to callers that come while the process is ending.
    """

    shared: Shared
    profiles: Mapping[str, Profile]
    routes: Sequence[Route]
    client_tokens: Collection[str]
    lends_key: bool
    account_paths: Collection[str]
    body_timeout_s: float
    drain_s: float

    def authorize(self, request: web.Request) -> None:
        """Refuse who may not ask.

        Raises:
            Unauthorized: it presents no token.
            Forbidden: it is a page in a browser, whose user would pay without knowing.
        """
        if not self.client_tokens:
            if self.lends_key and "Origin" in request.headers:
                raise Forbidden(
                    "a page in a browser is lent the operator's key where it presents one of "
                    "loopguard's client tokens, and none are set"
                )
            return
        presented = (crossing.credential(request.headers) or "").encode(errors="surrogateescape")
        # Every token is compared, and each in constant time, so that timing tells nothing.
        if not sum(hmac.compare_digest(presented, token.encode()) for token in self.client_tokens):
            raise Unauthorized("present one of loopguard's client tokens as the bearer token")

    def profile(self, named: str | None, request: web.Request, model: str | None) -> Profile:
        """Choose by path, then header, then route."""
        name = named or request.headers.get(crossing.PROFILE)
        if name is None:
            matching = (
                route.profile for route in self.routes if fnmatchcase(model or "", route.model)
            )
            name = next(matching, DEFAULT_PROFILE)
        if name not in self.profiles:
            raise InvalidRequest(f"the profile that {crossing.PROFILE} names does not exist")
        return self.profiles[name]

    def withholds(self, path: str) -> bool:
        """Whether the operator's key is not lent for a path, in its plainest spelling."""
        paths = tuple(f"{withheld.rstrip('/')}/" for withheld in self.account_paths)
        return self.lends_key and f"{path}/".startswith(paths)


class Routes:
    """Serves every request of the API listener.

    Attributes:
        service: of the requests that come from now on; those that run keep the one they began with.
        exchanges: in flight.
        draining: whether this process is about to end.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self.exchanges: set[Exchange] = set()
        self._requests = 0
        self.draining = False
        self._refusing = False
        self._idle = asyncio.Event()
        self._idle.set()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Serve one request; every refusal has the shape of the path's own API."""
        self._requests += 1
        self._idle.clear()
        try:
            return await self._answer(request)
        finally:
            self._requests -= 1
            if not self._requests:
                self._idle.set()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._serve(request)
        except web.RequestPayloadError:
            refusal: LoopguardError = InvalidRequest("the request body broke off")
        except LoopguardError as error:
            refusal = error
        except CallerGone:
            return web.Response()
        except Exception:  # noqa: BLE001 - the caller is told, in the API's shape
            self.service.shared.report.own_fault()
            refusal = InternalFault("loopguard has failed on this request")
        self.service.shared.report.request_refused(refusal)
        response = error_response(refusal, _spoken(request).error_body(refusal))
        if not request.content.is_eof():
            response.force_close()
        return response

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        service = self.service
        service.authorize(request)
        if self._refusing:
            raise Draining("loopguard is restarting", retry_after_s=service.drain_s)
        target = _read_target(request)
        if target.profile is not None and target.profile not in service.profiles:
            raise PathNotFound("the profile that the path names does not exist")
        dialect = DIALECTS.get(target.plain) if request.method == "POST" else None
        if dialect is None:
            if service.withholds(target.plain):
                raise Forbidden("the operator's key is not lent for this path")
            body = arriving(request.content, service.body_timeout_s)
            path = target.rest + target.query
            return await pass_through(request, service.shared.upstream, path, body)
        plan = dialect.plan(await _body(request, service.body_timeout_s))
        profile = service.profile(target.profile, request, plan.model)
        exchange = Exchange(
            service.shared,
            request,
            plan,
            path=target.plain + target.query,
            dialect=dialect,
            profile=profile,
            relay=_relay(request, profile),
        )
        self.exchanges.add(exchange)
        try:
            return await exchange.run()
        finally:
            self.exchanges.discard(exchange)

    def sights(self) -> Sights:
        """The exchanges in flight; at most 100 are shown, the suspected first, then the oldest."""
        suspected = {each for each in self.exchanges if each.state == "suspected"}
        shown = nsmallest(
            SHOWN_EXCHANGES,
            self.exchanges,
            key=lambda each: (each not in suspected, each.began_at),
        )
        return Sights(
            in_flight=len(self.exchanges),
            suspected=len(suspected),
            shown=[exchange.sight() for exchange in shown],
            newest_loop=self.service.shared.accounts.newest_loop,
        )

    async def end_connection(self, _: web.Request, response: web.StreamResponse) -> None:
        """Let a caller's next request find another replica, once this one is about to end."""
        if self.draining:
            response.force_close()
            response.headers["Connection"] = "close"

    async def drain(self, delay_s: float, limit_s: float, farewell_s: float) -> None:
        """Be unready, then refuse what comes, let what runs end, and end the exchanges that do not.

        Args:
            delay_s: seconds in which what comes is still served, so that whoever sends it here
                sees first that it should not.
            limit_s: seconds that what runs may take after that.
            farewell_s: seconds that those which are ended may take to say so.
        """
        self.draining = True
        await asyncio.sleep(delay_s)
        self._refusing = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), limit_s)
        for exchange in list(self.exchanges):
            exchange.drain()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), farewell_s)


async def _body(request: web.Request, patience_s: float) -> bytes:
    limit_bytes = request.client_max_size
    too_large = BodyTooLarge(f"the request body exceeds {limit_bytes} bytes")
    coding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if coding not in {"identity", *_PACKED}:
        raise InvalidRequest("the request body has a Content-Encoding that is not known here")
    if (request.content_length or 0) > limit_bytes:
        raise too_large
    body = bytearray()
    async for piece in arriving(request.content, patience_s):
        body += piece
        if len(body) > limit_bytes:
            raise too_large
    if coding == "identity":
        return bytes(body)
    # A few bytes may become very many; what is longer than the bound is not unpacked.
    unpacked = await asyncio.to_thread(_unpacked, bytes(body), limit_bytes)
    if len(unpacked) > limit_bytes:
        raise too_large
    return unpacked


class _Target(NamedTuple):
    """What a path names: a profile or none, and the rest of it, as written and in plain."""

    profile: str | None
    rest: str
    plain: str
    query: str


def _read_target(request: web.Request) -> _Target:
    raw_path, _, query = request.raw_path.partition("?")
    match = _PATH.fullmatch(raw_path)
    if match is None:
        raise PathNotFound("no such path; the API begins at /v1 or /api/v1")
    rest = match["rest"]
    return _Target(match["profile"], rest, _plainest(rest), f"?{query}" if query else "")


def _unpacked(packed: bytes, limit_bytes: int) -> bytes:
    """What gzip or zlib has packed, as far as a byte beyond the limit.

    Raises:
        InvalidRequest: neither has, or a part is missing.
    """
    reader = zlib.decompressobj(wbits=_GZIP_OR_ZLIB)
    try:
        unpacked = reader.decompress(packed, limit_bytes + 1)
    except zlib.error:
        raise InvalidRequest("the request body cannot be unpacked") from None
    if len(unpacked) <= limit_bytes and (reader.unused_data or not reader.eof):
        raise InvalidRequest("the request body ends before its packing does, or behind it")
    return unpacked


def _spoken(request: web.Request) -> Dialect:
    """The dialect whose form a refusal takes; chat's, OpenRouter's own, off the guarded paths."""
    try:
        return DIALECTS.get(_read_target(request).plain, chat)
    except PathNotFound:
        return chat


def _relay(request: web.Request, profile: Profile) -> Relay:
    match request.headers.get(crossing.RELAY):
        case None:
            return profile.relay
        case "hold":
            return "hold"
        case "live":
            return "live"
        case _:
            raise InvalidRequest(f"{crossing.RELAY} is neither `hold` nor `live`")


def _plainest(path: str) -> str:
    """The path as the most lenient of servers reads it.

    Decoded twice, in small letters, without parameters and without doubled or closing slashes.

    Raises:
        PathNotFound: it would leave the prefix.
    """
    segments = re.split(r"[/\\]", unquote(unquote(path)).lower())
    segments = [name for segment in segments if (name := _AFTER_A_NAME.sub("", segment))]
    if any(segment in (".", "..") for segment in segments):
        raise PathNotFound("the path has segments that lead out of the API")
    return "/" + "/".join(segments)
