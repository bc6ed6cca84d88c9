"""Every dialect beside the fake's own voice on its wire, and replies of every kind."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from loopguard.core import sse
from loopguard.core.dialects import DIALECTS, Dialect, HeldReply
from loopguard.core.events import Event
from tests.fake_openrouter import (
    Message,
    Reply,
    ToolCall,
    citation,
    encrypted,
    image,
    summary,
    thought,
)
from tests.fake_openrouter.server import WIRES

REPLIES = {
    "text": Reply("The good answer, with an emoji 😀 and more."),
    "empty": Reply(""),
    "2025": Reply("An older wire.", age=2025, usage_shape="bare"),
    "usage without choices": Reply("Bedrock.", usage_shape="no_choices"),
    "comments": Reply("Slow, but there.", comments=3, comment_every=2),
    "cap": Reply(Message("Cut off in the mi", finish="length")),
    "reasoning": Reply(Message("Yes.", reasoning=(thought("Let me think about it", "sig"),))),
    "summary and blob": Reply(
        Message("Yes.", reasoning=(summary("It was thought."), encrypted("A" * 300)))
    ),
    "two blobs": Reply(Message("Yes.", reasoning=(encrypted("A", "rs_1"), encrypted("B", "rs_2")))),
    "tool calls": Reply(
        Message(
            tool_calls=(
                ToolCall("read", '{"path": "a b c d e f"}', "call_1"),
                ToolCall("write", '{"text": "one \\"two\\" three"}', "call_2"),
            )
        )
    ),
    "text and a call": Reply(Message("I will look.", tool_calls=(ToolCall("ls", "{}", "call_1"),))),
    "annotations": Reply(
        Message("See it.", annotations=(citation("http://a"), citation("http://b")))
    ),
    "images": Reply(Message("A picture.", images=(image(), image()))),
    "refusal": Reply(Message(refusal="I will not do that.", finish="content_filter")),
    "logprobs": Reply(Message("One two three four five six.", logprobs=True)),
    "choices": Reply(choices=(Message("first of two"), Message("second of two, longer"))),
}


class Sample(NamedTuple):
    """One reply on one wire."""

    dialect: Dialect
    stream: bytes
    whole: dict[str, Any]


def samples() -> Iterator[tuple[str, Sample]]:
    """Every reply on every wire, each under its name."""
    for path, dialect in DIALECTS.items():
        for name, reply in REPLIES.items():
            wire = WIRES[path]
            stream = b"".join(wire.events(reply))
            yield f"{dialect.NAME}: {name}", Sample(dialect, stream, wire.whole(reply))


SAMPLES = dict(samples())


def blocks(stream: bytes) -> list[sse.Block]:
    """The events of a stream, without its comments."""
    return [block for block in sse.Decoder(1 << 24).feed(stream) if block.data is not None]


def hold(dialect: Dialect, stream: bytes) -> HeldReply:
    """A stream, held."""
    parser, held = dialect.Parser(), dialect.Held()
    for block in blocks(stream):
        assert block.data is not None
        held.add(block, parser.parse(block.data))
    return held


def events(dialect: Dialect, stream: bytes) -> list[Event]:
    """A stream, read."""
    parser = dialect.Parser()
    return [event for block in blocks(stream) for event in parser.parse(block.data or b"").events]
