"""JSON as others write it: orjson first, the standard library for what orjson refuses.

A lone surrogate escape is the case that matters: some providers cut an emoji in two and send one
half of its pair in each delta. orjson refuses both halves, ``json`` reads and writes them.
"""

import json
import math
from typing import Any

import orjson

# orjson writes no value that is nested more than 254 levels deep, and Python compares and writes
# none much deeper than 900. A few levels are left for what a value is put into.
_MAX_NESTING = 240


def loads(text: bytes, *, to_write: bool = False) -> Any:
    """Parse one JSON text.

    Args:
        text: in UTF-8.
        to_write: whether it is written again, which numbers beyond 64-bit floats do not survive.

    Raises:
        ValueError: ``text`` is not JSON, or is nested too deeply to be written again.
    """
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        try:
            # Given bytes it would guess at UTF-16 and others, which an upstream reads otherwise.
            value = json.loads(
                text.decode("utf-8", "surrogatepass"),
                parse_float=_finite if to_write else None,
                parse_constant=_finite if to_write else None,
            )
        except RecursionError:
            raise ValueError("nested too deeply") from None
    # What is deep has as many brackets that open and as many that close.
    if len(text) > 2 * _MAX_NESTING and text.count(b"[") + text.count(b"{") > _MAX_NESTING:
        _refuse_deep(value)
    return value


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number that is not finite")
    return number


def _refuse_deep(value: object) -> None:
    level = [value]
    for _ in range(_MAX_NESTING):
        inner: list[object] = []
        for node in level:
            if isinstance(node, dict):
                inner += node.values()
            elif isinstance(node, list):
                inner += node
        level = inner
    if level:
        raise ValueError("nested too deeply")


def dumps(value: object, *, sort_keys: bool = False) -> bytes:
    """Write ``value`` as compact JSON in UTF-8; a pair of surrogates comes out as one escape."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS if sort_keys else None)
    except TypeError:  # a lone surrogate, or an integer of more than 64 bits
        return json.dumps(value, separators=(",", ":"), sort_keys=sort_keys).encode()


def string_body(text: str) -> bytes:
    """Write ``text`` as the inside of a JSON string, without its quotes."""
    return dumps(text)[1:-1]
