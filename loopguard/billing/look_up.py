"""Ask the upstream's generation endpoint for one record, and read only what the answer is."""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeAlias

import aiohttp
import orjson

LONGEST_RECORD_BYTES = 262_144
"""A record is about 2 kB; an answer beyond this is none, and is not read."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the endpoint answered.

    Attributes:
        status: the HTTP status, 0 where there was no answer: no connection, or none in time.
        retry_after_s: seconds that the upstream wants to be left alone, None where it does not say.
        record: the ``data`` object of a 200, None where there is none that can be read.
    """

    status: int
    retry_after_s: float | None = None
    record: Mapping[str, object] | None = None

    @property
    def refuses_key(self) -> bool:
        """Whether the answer is about the key rather than about the generation."""
        return self.status in (401, 402, 403)

    @property
    def pause_s(self) -> float:
        """Seconds that the upstream, too busy or failing, asked to be left alone for."""
        busy = self.status == HTTPStatus.TOO_MANY_REQUESTS or self.status >= _SERVER_FAILS
        return self.retry_after_s if busy and self.retry_after_s is not None else 0.0

    @property
    def outcome(self) -> str:
        """What the look-up came to, in one word of a closed set."""
        if self.refuses_key:
            return "key_refused"
        match self.status:
            case 0:
                return "no_answer"
            case 200:
                return "unreadable" if self.record is None else "found"
            case 404:
                return "not_found"
            case 429:
                return "rate_limited"
            case _:
                return "failed"


LookUp: TypeAlias = Callable[[str, str], Awaitable[Answer]]
"""Looks a generation (its id) up with a key; never raises for what the upstream did."""

NO_ANSWER = Answer(status=0)

_SERVER_FAILS = 500
"""The first of the statuses that say so."""

_seconds = re.compile(r"[0-9]{1,9}")


def look_up_at(session: aiohttp.ClientSession, base_url: str, timeout_s: float) -> LookUp:
    """Return the look-up at an upstream.

    Args:
        session: whose connections are used.
        base_url: the upstream's, without a slash at its end.
        timeout_s: for one look-up as a whole; this endpoint has been seen to hang.
    """
    timeout = aiohttp.ClientTimeout(total=timeout_s)

    async def look_up(generation: str, key: str) -> Answer:
        try:
            async with session.get(
                f"{base_url}/generation",
                params={"id": generation},
                headers={"Authorization": f"Bearer {key}"},
                timeout=timeout,
                allow_redirects=False,  # a redirect would carry the key to another host
            ) as response:
                return Answer(
                    response.status,
                    _retry_after_s(response.headers.get("Retry-After")),
                    await _read_record(response) if response.status == HTTPStatus.OK else None,
                )
        except (aiohttp.ClientError, TimeoutError, ValueError):
            # ValueError: the key or the id cannot stand in a request.
            return NO_ANSWER

    return look_up


def _retry_after_s(header: str | None) -> float | None:
    """Read the header's seconds; its other form, a date, is not sent by this endpoint."""
    return float(header) if header is not None and _seconds.fullmatch(header) else None


async def _read_record(response: aiohttp.ClientResponse) -> Mapping[str, object] | None:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > LONGEST_RECORD_BYTES:
            return None
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    record = answer.get("data") if isinstance(answer, dict) else None
    return record if isinstance(record, dict) else None
