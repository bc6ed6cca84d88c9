"""JSON as others write it: orjson first, the standard library for what orjson refuses.

A lone surrogate escape is the case that matters: some providers cut an emoji in two and send one
half of its pair in each delta. orjson refuses both halves, ``json`` reads and writes them.
"""

import json
from typing import Any

import orjson


def loads(text: bytes) -> Any:
    """Parse one JSON text.

    Raises:
        ValueError: ``text`` is not JSON, or is nested too deeply to be read.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        try:
            return json.loads(text)
        except RecursionError:
            raise ValueError("nested too deeply") from None


def dumps(value: object) -> bytes:
    """Write ``value`` as compact JSON in UTF-8; a pair of surrogates comes out as one escape."""
    try:
        return orjson.dumps(value)
    except TypeError:  # a lone surrogate, or an integer of more than 64 bits
        return json.dumps(value, separators=(",", ":")).encode()


def string_body(text: str) -> bytes:
    """Write ``text`` as the inside of a JSON string, without its quotes."""
    return dumps(text)[1:-1]
