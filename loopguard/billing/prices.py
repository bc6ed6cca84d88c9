"""Read what a generation cost from the upstream's record of it.

Money is a ``Decimal`` of US dollars from the first line that sees it. An amount arrives as a JSON
number such as 0.0000057915, which a binary float does not hold exactly; the shortest decimal that
reads back as that float is the number that was written, so that is what is taken. A price per token
has been seen with 9 decimals and a discount may add three, so 12 decimals are kept: nothing that
an upstream bills is lost, and a sum of stored amounts is exact.

Blind spots: an upstream that bills in another currency is taken at its number, and one that
corrects a finished record afterwards is not read again.
"""

from collections.abc import Mapping
from decimal import Decimal

from loopguard.billing.entries import Price

SMALLEST_USD = Decimal("1e-12")
"""The last decimal that is kept."""

LARGEST_USD = 1_000_000
"""An amount beyond this is not the price of one reply but a mistake, and is not believed. It also
keeps a stored amount within 64 bits."""

MOST_TOKENS = 2**53
"""A count beyond this is not believed; JSON numbers stop being exact there."""


def usd(amount: object) -> Decimal | None:
    """Return a JSON number as an exact amount of US dollars, None where it cannot be one.

    Args:
        amount: as parsed from JSON; a negative, infinite or absurd one is None.
    """
    if isinstance(amount, bool) or not isinstance(amount, int | float):
        return None
    if not 0 <= amount < LARGEST_USD:  # nor is it NaN then
        return None
    return Decimal(str(amount)).quantize(SMALLEST_USD)


def token_count(count: object) -> int | None:
    """Return a JSON number as a number of tokens, None where it cannot be one."""
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count < MOST_TOKENS:
        return None
    return count


def read_price(record: Mapping[str, object]) -> Price | None:
    """Return the price that the generation endpoint's ``data`` object tells, None where none.

    ``total_cost`` leaves out what a provider bills to the caller's own account, so for such a
    generation (``is_byok``) ``upstream_inference_cost`` is added. Tokens are the provider's own
    count (``native_``), which is the one that is billed, where the record has it.
    Source: OpenRouter's API reference, GET /generation.
    """
    cost = usd(record.get("total_cost"))
    if cost is None:
        return None
    if record.get("is_byok") is True:
        cost += usd(record.get("upstream_inference_cost")) or Decimal(0)
    cancelled = record.get("cancelled")
    return Price(
        cost_usd=cost,
        prompt_tokens=_billed_tokens(record, "prompt"),
        completion_tokens=_billed_tokens(record, "completion"),
        cancelled=cancelled if isinstance(cancelled, bool) else None,
    )


def looks_unfinished(price: Price) -> bool:
    """Tell whether the record may have been read before the upstream had completed it.

    A generation that wrote nothing and was not cancelled is one that is still being counted.
    """
    return not price.completion_tokens and price.cancelled is not True


def _billed_tokens(record: Mapping[str, object], kind: str) -> int | None:
    native = token_count(record.get(f"native_tokens_{kind}"))
    return token_count(record.get(f"tokens_{kind}")) if native is None else native
