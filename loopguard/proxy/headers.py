"""Which headers cross the proxy, in either direction."""

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from multidict import CIMultiDict, CIMultiDictProxy

PROFILE = "X-Loopguard-Profile"
RELAY = "X-Loopguard-Relay"
RUN = "X-Loopguard-Run"

# RFC 9110, section 7.6.1, and what older peers send in its stead.
_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)

# The body is framed anew, and always asked for as it is (lessons.md 15).
_FRAMING = frozenset({"content-length", "content-encoding"})

# What a balancer in front adds; who our callers are is none of the upstream's business.
_OF_THE_CALLER = frozenset(
    {
        "forwarded",
        "via",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-port",
        "x-forwarded-proto",
        "x-real-ip",
    }
)

_NOT_UPSTREAM = _HOP_BY_HOP | _FRAMING | _OF_THE_CALLER | {"host", "accept-encoding", "expect"}

# They speak of the upstream's host or of its CDN's view of one client, not of the reply.
_OF_THE_UPSTREAM_HOST = frozenset(
    {
        "alt-svc",
        "date",
        "nel",
        "report-to",
        "server",
        "set-cookie",
        "strict-transport-security",
    }
)

_CREDENTIALS = frozenset({"authorization", "x-api-key"})

# What no value may hold (RFC 9110, section 5.5): a peer that is lenient ends the header there.
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")

_OURS = "x-loopguard-"

Headers = CIMultiDictProxy[str]


def _crossing(headers: Headers, dropped: frozenset[str]) -> Iterator[tuple[str, str]]:
    """What goes on to the other side; nobody but loopguard speaks of loopguard."""
    named = {
        name.strip().lower()
        for value in headers.getall("Connection", ())
        for name in value.split(",")
    }
    for name, value in headers.items():
        lowered = name.lower()
        if (
            lowered not in dropped
            and lowered not in named
            and not lowered.startswith(_OURS)
            and not _CONTROL.search(value)
        ):
            yield name, value


def to_upstream(
    headers: Headers, api_key: str | None, *, verbatim_body: bool = False
) -> list[tuple[str, str]]:
    """The caller's headers as the upstream gets them.

    Args:
        headers: the caller's.
        api_key: the operator's key, which then replaces the caller's credentials.
        verbatim_body: whether both bodies are passed on as they come, so that the caller's stays
            packed as it is, and the answer's may be in any way that the caller takes.
    """
    dropped = _NOT_UPSTREAM | _CREDENTIALS if api_key is not None else _NOT_UPSTREAM
    if verbatim_body:
        dropped -= {"content-encoding"}
    kept = list(_crossing(headers, dropped))
    encodings = headers.getall("Accept-Encoding", ()) if verbatim_body else ()
    kept.append(("Accept-Encoding", ", ".join(encodings) or "identity"))
    if api_key is not None:
        kept.append(("Authorization", f"Bearer {api_key}"))
    return kept


def clearing_cache(headers: Headers) -> Headers:
    """The caller's headers for a request after a loop, which OpenRouter may have cached.

    Where the caller asks for its cache, a reply that came from there would come again, loop and
    all, for as long as it is kept (openrouter.md 6).
    """
    if "X-OpenRouter-Cache" not in headers:
        return headers
    cleared = CIMultiDict(headers)
    cleared["X-OpenRouter-Cache-Clear"] = "true"
    return CIMultiDictProxy(cleared)


def to_caller(headers: Headers, *, verbatim_body: bool = False) -> list[tuple[str, str]]:
    """The upstream's headers as the caller gets them.

    Args:
        headers: the upstream's.
        verbatim_body: whether the body's bytes are passed on as they come, so that the headers
            that describe them stay true.
    """
    dropped = _HOP_BY_HOP | _OF_THE_UPSTREAM_HOST
    if not verbatim_body:
        dropped |= _FRAMING
    return list(_crossing(headers, dropped))


def credential(headers: Headers) -> str | None:
    """What the caller presents: the bearer token, or an Anthropic client's ``x-api-key``."""
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token:
        return token.strip()
    return headers.get("X-Api-Key")


def run_of(headers: Headers, session: str | None) -> str | None:
    """The run that an exchange belongs to.

    Args:
        headers: the caller's.
        session: what its body names as ``session_id``.
    """
    return headers.get(RUN) or session or headers.get("X-Session-Id") or None


def retry_after_s(values: Iterable[str], now: datetime | None = None) -> float | None:
    """Read a ``Retry-After``: seconds, or a date. None where there is none that can be read."""
    for value in values:
        try:
            return max(0.0, float(value))
        except ValueError:
            pass
        try:
            moment = parsedate_to_datetime(value)
        except ValueError:
            continue
        if moment.tzinfo is None:  # `-0000`: a time of UTC from a clock that knows no zone
            moment = moment.replace(tzinfo=UTC)
        return max(0.0, (moment - (now or datetime.now(UTC))).total_seconds())
    return None
