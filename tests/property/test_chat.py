"""Chat Completions chunks with anything anywhere: refused when read, or served to the end."""

import copy
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from loopguard.core import json_text, sse
from loopguard.core.dialects import chat, runs
from tests.samples import COMPLETED

KEYS = [
    *("id", "object", "created", "model", "provider", "service_tier", "error", "usage", "choices"),
    *("index", "delta", "finish_reason", "native_finish_reason", "logprobs", "obfuscation"),
    *("role", "content", "reasoning", "reasoning_content", "refusal", "reasoning_details"),
    *("tool_calls", "annotations", "images", "audio", "function_call", "function", "arguments"),
    *("name", "type", "text", "summary", "data", "signature", "transcript", "code", "message"),
    *("cost", "prompt_tokens", "completion_tokens"),
]
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([1 << 70, 0.5, "error", "stop", "x", "\ud83d", ""])
    | st.text(max_size=4)
)
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=3), inner, max_size=5)
    ),
    max_leaves=12,
)
GENUINE = [
    json.loads(block.data)
    for reply in COMPLETED.values()
    for block in sse.Decoder(1 << 20).feed(reply.stream())
    if block.data not in (None, runs.SENTINEL)
]


@st.composite
def changed(draw: st.DrawFn) -> Any:
    """A genuine chunk in which any one value, however deep, is anything."""
    chunk = copy.deepcopy(draw(st.sampled_from(GENUINE)))
    node: Any = chunk
    while True:
        key = draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
        below = node[key]
        if not (isinstance(below, dict | list) and below and draw(st.booleans())):
            node[key] = draw(ANYTHING)
            return chunk
        node = below


CHUNKS = st.lists(
    st.sampled_from(GENUINE) | changed() | st.dictionaries(st.sampled_from(KEYS), ANYTHING),
    max_size=8,
)


def accepted(lines: list[bytes]) -> list[bytes]:
    """The lines that a parser does not refuse."""
    parser = chat.Parser()
    read = []
    for line in lines:
        try:
            parser.parse(line)
        except ValueError:
            continue
        read.append(line)
    return read


def hold(lines: list[bytes]) -> chat.Held:
    parser, held = chat.Parser(), chat.Held()
    for line in lines:
        held.add(sse.Block(b"", line), parser.parse(line))
    return held


@given(CHUNKS)
@settings(max_examples=300)
def test_what_is_read_can_be_served(chunks: list[Any]) -> None:
    """What the parser takes can be held, sent again, read again and assembled."""
    held = hold(accepted([json_text.dumps(chunk) for chunk in chunks]))
    again = [block.data for block in sse.Decoder(1 << 20).feed(b"".join(held.stream()))]
    assert accepted(again) == again
    json_text.dumps(held.whole())


@given(st.lists(st.sampled_from(GENUINE), max_size=20))
def test_any_order_is_held_as_the_same_reply(chunks: list[Any]) -> None:
    """In whatever order chunks come, the held reply is the one that was sent."""
    held = hold([json_text.dumps(chunk) for chunk in chunks])
    again = [block.data for block in sse.Decoder(1 << 20).feed(b"".join(held.stream()))]
    assert chat.assemble(map(json_text.loads, again)) == chat.assemble(chunks)
    assert held.whole() == chat.assemble(chunks)


@given(st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
def test_any_line_is_read_or_refused(line: bytes) -> None:
    """No bytes make the parser raise anything but ValueError."""
    accepted([line, b'{"id":' + line + b"}"])
