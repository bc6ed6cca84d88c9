"""Fields of a chunk, taken as the kinds that holding and assembling rely on."""

import math
from collections.abc import Iterable
from typing import Any, TypeAlias, TypeVar

from loopguard.core.events import GenerationId, Usage

Json: TypeAlias = dict[str, Any]
"""One object of a wire."""

_Kind = TypeVar("_Kind")


def expect(value: object, kind: type[_Kind]) -> _Kind | None:
    """The value, if it is null or of the kind.

    Raises:
        TypeError: it is of another kind.
    """
    if value is None or isinstance(value, kind):
        return value
    raise TypeError(kind.__name__)


def string_of(holder: Json, name: str) -> str:
    """A field's text, empty where it is absent or null.

    Raises:
        TypeError: it is no text.
    """
    return expect(holder.get(name), str) or ""


def index_of(holder: Json, name: str = "index") -> int | None:
    """A field's whole number, None where it is absent or null.

    Raises:
        TypeError: it is no whole number.
    """
    return expect(holder.get(name), int)


def origin_of(holder: Json, generation: str | None) -> GenerationId:
    """What a stream says of itself; a name that is no text is none, and breaks no reply.

    Args:
        holder: says where the reply comes from.
        generation: its id, where this wire has it.
    """
    model, provider = holder.get("model"), holder.get("provider")
    return GenerationId(
        generation,
        model if isinstance(model, str) else None,
        provider if isinstance(provider, str) else None,
    )


def usage_of(usage: Json, prompt: Iterable[str], completion: str) -> Usage:
    """What the upstream counted.

    With a provider key of the caller's own (``is_byok``) the cost is OpenRouter's fee alone, and
    the provider's bill stands beside it (openrouter.md 1.3 and 4): the reply has cost both.

    A figure that cannot be read is not known: a good reply is not broken for its bill.

    Args:
        usage: its object.
        prompt: the fields whose sum is the prompt's tokens.
        completion: the field of the completion's.
    """
    cost = _number(usage.get("cost"))
    if cost is not None and usage.get("is_byok") is True:
        details = usage.get("cost_details")
        bill = details.get("upstream_inference_cost") if isinstance(details, dict) else None
        cost += _number(bill) or 0.0
    return Usage(
        sum(int(_number(usage.get(name)) or 0) for name in prompt),
        int(_number(usage.get(completion)) or 0),
        cost,
    )


def _number(value: object) -> float | None:
    """A finite number, written as one or as text; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (OverflowError, ValueError):
        return None
    return number if math.isfinite(number) else None
