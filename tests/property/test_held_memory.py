"""A held reply costs memory by its text, whatever pieces it came in."""

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from loopguard.core import sse
from loopguard.core.dialects import chat
from tests.fake_openrouter import Message, Reply, ToolCall, thought

TEXT = "The quick brown fox jumps over the lazy dog, 42 times a day. " * 250
THINKING = Message(reasoning=(thought(TEXT),))
CALL = Message(tool_calls=(ToolCall("write", TEXT, "call_1"),))

# Each with the bytes of its text; thinking is sent twice, as text and as details, but counts once.
REPLIES = {
    "content": (Reply(TEXT), len(TEXT)),
    "content, 2025": (Reply(TEXT, age=2025, usage_shape="bare"), len(TEXT)),
    "reasoning": (Reply(THINKING), len(TEXT)),
    "arguments": (Reply(CALL), len(TEXT)),
    "choices in turns": (Reply(choices=(Message(TEXT), THINKING)), 2 * len(TEXT)),
    "calls in turns": (Reply(choices=(CALL, CALL)), 2 * len(TEXT)),
}


# A thread that an earlier test has left behind takes memory too.
OURS = [tracemalloc.Filter(True, pattern) for pattern in (__file__, "*/loopguard/core/*", "<*>")]  # noqa: FBT003


@contextmanager
def traced() -> Iterator[Callable[[], int]]:
    """Tell how many bytes the code of these tests and of the core has taken meanwhile."""
    tracemalloc.start()
    try:
        yield lambda: sum(
            trace.size for trace in tracemalloc.take_snapshot().filter_traces(OURS).traces
        )
    finally:
        tracemalloc.stop()


def held_bytes(reply: Reply) -> int:
    """Memory that keeping a reply takes."""
    blocks = sse.Decoder(1 << 24).feed(reply.stream())
    parser = chat.Parser()
    with traced() as taken:
        held = chat.Held()
        for block in blocks:
            if block.data is not None:
                data = bytes(memoryview(block.data))  # in memory that is traced
                held.add(sse.Block(b"", data), parser.parse(data))
        kept = taken()
    assert held.size_bytes <= kept
    return kept


@pytest.mark.parametrize("event", [b"{}", b'{"choices":[{"index":%d,"delta":{"content":"x"}}]}'])
def test_many_small_events_are_counted(event: bytes) -> None:
    """What is counted of events that say hardly anything is most of the memory that they take."""
    events = [event % number if b"%d" in event else event for number in range(20_000)]
    with traced() as taken:
        held, parser = chat.Held(), chat.Parser()
        for data in events:
            held.add(sse.Block(b"", data), parser.parse(data))
        assert held.size_bytes / 2 < taken() < 2 * held.size_bytes


@pytest.mark.parametrize(("reply", "text_bytes"), REPLIES.values(), ids=REPLIES)
def test_held_memory_is_that_of_the_text(reply: Reply, text_bytes: int) -> None:
    """A held reply takes at most four times its text, and no more in eight times the chunks."""
    few, many = (held_bytes(replace(reply, delta_chars=chars)) for chars in (8, 1))
    assert max(few, many) <= 4 * text_bytes
    assert abs(many - few) <= text_bytes / 2
