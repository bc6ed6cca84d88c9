"""What the upstream's list of models says of a model's output: its price, and where it ends.

From it follows what a cut has saved: a reply that loops goes on until the provider's own cap ends
it, so the tokens from the cut to the cap would have been generated and paid. Every ``Terms`` comes
from ``GET {base}/models`` (OpenRouter's API reference: ``pricing.completion``, US dollars a token
as text, and ``top_provider.max_completion_tokens``). The list is public and is asked for without a
key, only once a looping reply has been priced, and then once an hour at the most.

Blind spots: a cap that the request set itself is not known here, so the saving of such a request is
too high; another provider of the model than its usual one may have another cap and another price; a
model whose list entry names no cap saves nothing here.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from http import HTTPStatus
from typing import TypeAlias

import aiohttp
import orjson

from loopguard.billing.prices import LARGEST_USD, token_count

LONGEST_LIST_BYTES = 16_777_216
"""OpenRouter's list of some 400 models is about 1 MB."""

REFRESH_S = 3_600.0
"""Prices change some times a month. An upstream that gave no list is asked as rarely."""


TermsOf: TypeAlias = Callable[[str], Awaitable["Terms | None"]]
"""Tells the terms of a model, None where the upstream tells none; never raises."""


@dataclass(frozen=True, slots=True)
class Terms:
    """A model's output as it is sold.

    Attributes:
        cap_tokens: where the model's usual provider ends a reply.
        token_usd: price of one completion token, in US dollars.
    """

    cap_tokens: int
    token_usd: Decimal

    def saved_usd(self, written_tokens: int) -> Decimal:
        """Return what the tokens between a cut and the cap would have cost, in US dollars."""
        return max(self.cap_tokens - written_tokens, 0) * self.token_usd


class Market:
    """Knows the terms of the upstream's models.

    Args:
        session: whose connections are used.
        base_url: the upstream's, without a slash at its end.
        timeout_s: for the list as a whole.
        clock: tells the time in seconds, from any beginning.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        base_url: str,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._url = f"{base_url}/models"
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._clock = clock
        self._ask_at_s = float("-inf")
        self._terms: Mapping[str, Terms] = {}

    async def terms(self, model: str) -> Terms | None:
        """Return the terms of a model, None where the upstream tells none; never raise."""
        if self._clock() >= self._ask_at_s:
            self._ask_at_s = self._clock() + REFRESH_S
            self._terms = await self._list() or self._terms
        return self._terms.get(model)

    async def _list(self) -> Mapping[str, Terms]:
        try:
            async with self._session.get(
                self._url, timeout=self._timeout, allow_redirects=False
            ) as response:
                if response.status != HTTPStatus.OK:
                    return {}
                body = bytearray()
                async for chunk in response.content.iter_any():
                    body += chunk
                    if len(body) > LONGEST_LIST_BYTES:
                        return {}
            return read_terms(orjson.loads(body))
        except (aiohttp.ClientError, TimeoutError, orjson.JSONDecodeError):
            return {}


def read_terms(answer: object) -> dict[str, Terms]:
    """Return the terms by model of a list of models, leaving out what names no cap or price."""
    listed = answer.get("data") if isinstance(answer, dict) else None
    return {
        model["id"]: terms
        for model in (listed if isinstance(listed, list) else ())
        if isinstance(model, dict)
        and isinstance(model.get("id"), str)
        and (terms := _terms(model.get("top_provider"), model.get("pricing")))
    }


def _terms(provider: object, pricing: object) -> Terms | None:
    if not isinstance(provider, dict) or not isinstance(pricing, dict):
        return None
    cap_tokens = token_count(provider.get("max_completion_tokens"))
    try:
        token_usd = Decimal(pricing.get("completion", ""))
    except (InvalidOperation, TypeError, ValueError):
        return None
    if not cap_tokens or not token_usd.is_finite() or not 0 <= token_usd < LARGEST_USD:
        return None
    return Terms(cap_tokens, token_usd)
