"""Chat Completions streams that every reader of them is tried on: recorded ones and the fake's."""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.fake_openrouter import (
    Message,
    Reply,
    ToolCall,
    citation,
    encrypted,
    fault,
    image,
    loop,
    summary,
    thought,
)

SHARED = Path(os.environ.get("LOOPGUARD_SHARED", Path(__file__).parents[2] / "shared"))
RECORDED = SHARED / "transcripts" / "openrouter-chat"
needs_recordings = pytest.mark.skipif(
    not RECORDED.is_dir(), reason=f"no recorded exchanges at {RECORDED}"
)

EVERYTHING = Reply(
    choices=(
        Message(
            "wörld, hello 🙂",
            reasoning=(thought("let me think", "c2lnbmVk"), encrypted("Z2FyYmxlZA==", index=1)),
            annotations=(citation("https://example.com", "a title"),),
            images=(image(),),
            logprobs=True,
        ),
        Message(
            reasoning=(summary("**Looking things up**"), encrypted("Z2FyYmxlZA==")),
            tool_calls=(ToolCall("f", '{"x": 1}', "call_1"), ToolCall("g", "{}", "call_2")),
        ),
        Message(reasoning="no, never", refusal="I will not say that.", finish="content_filter"),
    ),
    comments=2,
    comment_every=3,
)

RECORDED_KINDS = [
    Reply("hello"),
    Reply("hello", usage_shape="no_choices"),
    Reply(Message("hello", annotations=(citation("https://example.com"),))),
    Reply("hello", age=2025, usage_shape="bare"),
    Reply(Message("hello", reasoning=(encrypted("Z2FyYmxlZA=="),)), age=2025, usage_shape="bare"),
    Reply(Message(reasoning=(thought("hm, well, so", "c2lnbmVk"),)), age=2025, usage_shape="bare"),
    Reply(
        Message("cut", finish="length"),
        age=2025,
        usage_shape="bare",
        fault={"code": 400, "message": "Token limit reached"},
    ),
]

# A reply of every kind, in both ages of the wire and with each shape of the usage chunk.
COMPLETED = {
    "everything": EVERYTHING,
    "everything, usage without choices": replace(EVERYTHING, usage_shape="no_choices"),
    "everything, 2025": replace(EVERYTHING, age=2025, usage_shape="bare"),
} | {f"kind {number}": reply for number, reply in enumerate(RECORDED_KINDS)}

_HALF = Reply("A reply that goes no further").stream()[:2000]

# Streams that end otherwise. The loop is of few large deltas: it is also read byte by byte.
BROKEN_OFF = {
    "loop": loop(lead_in="Some ordinary text first. ", chars=14_000).stream(),
    "loop in thinking": loop(channel="reasoning", chars=2_000).stream(),
    "error before a token": fault(502, "Upstream error", choices=False),
    "error in the middle": _HALF[: _HALF.rindex(b"data:")] + fault(429, "Rate limited"),
    "ends in mid-event": _HALF,
    "no JSON": _HALF[: _HALF.rindex(b"data:")] + b"data: <html>\n\n",
    "CRLF": Reply("hello").stream().replace(b"\n", b"\r\n"),
    "bytes after the sentinel": EVERYTHING.stream() + Reply("again").stream() + b"data: x",
}


def recorded_streams() -> dict[str, bytes]:
    """The recorded streams by their names."""
    return {path.stem: path.read_bytes() for path in sorted(RECORDED.glob("*.sse"))}


def recorded_exchanges() -> Iterator[dict[str, Any]]:
    """What was recorded beside the bytes of each stream, and of each whole reply."""
    for path in sorted(RECORDED.glob("*.json")):
        yield json.loads(path.read_text())


def streams() -> dict[str, bytes]:
    """All streams by their names."""
    fakes = {name: reply.stream() for name, reply in COMPLETED.items()}
    return fakes | BROKEN_OFF | recorded_streams()


def cut(stream: bytes, places: Iterable[int]) -> list[bytes]:
    """The stream in pieces, cut at the places that lie in it and at those beyond, wrapped round."""
    edges = sorted({0, len(stream), *(place % (len(stream) + 1) for place in places)})
    return [stream[start:end] for start, end in pairwise(edges)]
