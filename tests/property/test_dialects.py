"""No event of an upstream, however wrong, is more than a refusal."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopguard.core import json_text, sse
from loopguard.core.dialects import DIALECTS
from loopguard.core.events import Finish
from tests.unit.core.dialects.wires import SAMPLES, Sample, blocks

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["\ud83d", "error", "response.completed", "message_stop", "ping", "text"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["type", "index", "text", "delta", "item", "error", "code", "x"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=4,
)


def nodes(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value inside a JSON value, its own first."""
    yield path
    if isinstance(value, dict | list):
        for step in value if isinstance(value, dict) else range(len(value)):
            yield from nodes(value[step], (*path, step))


def put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """The value with another one at the path."""
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = put(value[path[0]], path[1:], new)
    return copy


@st.composite
def broken_streams(draw: st.DrawFn) -> tuple[Sample, list[sse.Block]]:
    """A stream of some wire in which one to three values were put where others belong."""
    sample = draw(st.sampled_from(list(SAMPLES.values())))
    came = blocks(sample.stream)
    for _ in range(draw(st.integers(1, 3))):
        number = draw(st.integers(0, len(came) - 1))
        if came[number].data == b"[DONE]":
            continue
        chunk = json_text.loads(came[number].data or b"")
        path = draw(st.sampled_from(list(nodes(chunk))))
        data = json.dumps(put(chunk, path, draw(VALUES))).encode()
        came[number] = sse.Block(b"", data, came[number].event)
    return sample, came


@settings(max_examples=2000)
@given(broken_streams())
def test_a_wrong_event_is_refused_or_held(broken: tuple[Sample, list[sse.Block]]) -> None:
    """A wrong event raises ValueError where it is read, or is held and assembled like any other."""
    sample, came = broken
    parser, held = sample.dialect.Parser(), sample.dialect.Held()
    finished = False
    for block in came:
        try:
            parsed = parser.parse(block.data or b"")
        except ValueError:
            return
        finished = finished or any(isinstance(event, Finish) for event in parsed.events)
        held.add(block, parsed)
    b"".join(held.stream())
    if finished:
        json_text.dumps(held.whole())


@pytest.mark.parametrize("path", DIALECTS)
@settings(max_examples=200)
@given(st.data())
def test_any_split_gives_the_same_events(path: str, data: st.DataObject) -> None:
    """However a stream is split, the same events are read from it."""
    names = [name for name in SAMPLES if name.startswith(DIALECTS[path].NAME + ":")]
    stream = SAMPLES[data.draw(st.sampled_from(names))].stream
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    decoder, parser = sse.Decoder(1 << 24), DIALECTS[path].Parser()
    read = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        for block in decoder.feed(stream[start:end]):
            if block.data is not None:
                read += parser.parse(block.data).events
    whole_parser = DIALECTS[path].Parser()
    assert read == [
        event for block in blocks(stream) for event in whole_parser.parse(block.data or b"").events
    ]
