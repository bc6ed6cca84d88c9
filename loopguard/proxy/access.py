"""Who may look at what is for operators, and who may change it."""

import hmac
import ipaddress
from urllib.parse import urlsplit

from aiohttp import hdrs, web

from loopguard.proxy.answers import refusal

_FORWARDED = ("Forwarded", "X-Forwarded-For", "X-Real-IP")


def is_loopback(host: str) -> bool:
    """Whether a name or an address is this machine's own."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def knows_host(request: web.Request, admin_host: str) -> bool:
    """Whether a request names this listener, where that can be told.

    A page of another site can point a name of its own at this machine, and would then be of the
    same origin. A listener on loopback is only ever called by a loopback name. What names nothing
    is no browser, but a balancer's check.
    """
    if hdrs.HOST not in request.headers:
        return True
    named = _named(request)
    return not is_loopback(admin_host) or is_loopback(named) or named == admin_host.lower()


def _named(request: web.Request) -> str:
    return (urlsplit(f"//{request.host}").hostname or "").lower()


def is_same_origin(request: web.Request) -> bool:
    """Whether a request was made by a page of this listener."""
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site == "same-origin"
    # Over plain HTTP browsers send it to loopback alone; but each sends the origin of a POST.
    origin = request.headers.get("Origin")
    return origin is not None and urlsplit(origin).netloc == request.host


def is_foreign(request: web.Request) -> bool:
    """Whether a request says that a page made it which is not of this listener."""
    said = "Sec-Fetch-Site" in request.headers or "Origin" in request.headers
    return said and not is_same_origin(request)


def refused_change(request: web.Request, admin_token: str | None) -> web.Response | None:
    """The answer to a request that may not change anything; None where it may."""
    if is_foreign(request):
        return refusal(403, "a page of another origin may change nothing here")
    if may_change(request, admin_token):
        return None
    if admin_token is None:
        return refusal(403, "changes come from this machine, or set server.admin_token")
    refused = refusal(401, "changes present server.admin_token as the bearer token")
    refused.headers["WWW-Authenticate"] = "Bearer"
    return refused


def may_change(request: web.Request, admin_token: str | None) -> bool:
    """Whether a request may change something.

    With an admin token: who presents it. Without: who comes from this machine, names it so, and
    does not come through a proxy on it, behind which may be anyone.
    """
    if admin_token is not None:
        scheme, _, presented = request.headers.get("Authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(
            presented.encode(errors="surrogateescape"), admin_token.encode()
        )
    forwarded = any(name in request.headers for name in _FORWARDED)
    return is_loopback(request.remote or "") and is_loopback(_named(request)) and not forwarded
