"""What is read by its frame is what the parser reads."""

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loopguard.core import sse
from loopguard.core.dialects import Dialect, chat, completions, messages
from tests.unit.core.dialects.wires import SAMPLES

TEXT = b'"TEXT"'


def chunk(**choice: Any) -> bytes:
    """A chunk of one choice, with a text of this module's."""
    return json.dumps({"id": "gen-1", "choices": [{"index": 0, **choice}]}).encode()


# Frames that differ little, and some whose text is not where it is looked for first.
FRAMES: dict[Dialect, list[bytes]] = {
    chat: [
        chunk(delta={"role": "assistant", "content": "TEXT"}),
        chunk(delta={"content": "TEXT"}, finish_reason=None),
        chunk(delta={"content": "TEXT"}, finish_reason="stop"),
        chunk(delta={"content": "TEXT"}, index=1),
        chunk(delta={"content": "TEXT"}, logprobs={"content": [{"token": "a"}]}),
        chunk(delta={"content": "TEXT", "refusal": "no"}),
        chunk(delta={"content": "", "refusal": "TEXT"}),
        chunk(delta={"reasoning": "TEXT"}),
        chunk(content="TEXT", delta={"content": "a"}),
        chunk(delta={"x": {"content": "TEXT"}, "content": "a"}),
        b'{"choices":[{"delta":{"content":"TEXT","content":"b"}}]}',
        b'{"choices":[{"delta":{"content": "TEXT"}}],"usage":{"cost":1}}',
    ],
    completions: [
        chunk(text="TEXT"),
        chunk(text="TEXT", finish_reason="stop"),
        chunk(text="TEXT", reasoning="hm"),
        chunk(text="TEXT", logprobs={"text": "TEXT"}),
        chunk(x={"text": "TEXT"}, text="a"),
    ],
    messages: [
        b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"TEXT"}}',
        b'{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"TEXT"}}',
        b'{"type":"content_block_delta","index":0,"delta":{"text":"TEXT","type":"text_delta"}}',
        b'{"type":"content_block_delta","index":0,"delta":{"type":"x","text":"TEXT"}}',
        b'{"type":"ping"}',
        b'{"type":"message_stop","text":"TEXT"}',
    ],
}
OPENINGS: dict[Dialect, list[bytes]] = {
    chat: [],
    completions: [],
    messages: [
        b'{"type":"message_start","message":{"usage":{}}}',
        b'{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}',
        b'{"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}',
    ],
}
# What stands in the place of the text: strings in both spellings, and what is no string.
VALUES = (
    st.text(max_size=6).map(lambda text: json.dumps(text).encode())
    | st.text(max_size=6).map(
        lambda text: json.dumps(text, ensure_ascii=False).encode(errors="surrogatepass")
    )
    | st.sampled_from(
        [
            *(b'"\\ud83d"', b'"a\\/b"', b'"caf\\u00e9"', b'"\xff"', b'"\x01"', b'"\\"', b'"\\q"'),
            *(b"null", b"1", b'""', b'"', b"", b'"a","x":"b"', b'"a"}', b'" ', b'"' + b"x" * 3000),
            *(b'"' + b"long " * 900 + b'"', b'"loopguard"', b"{}", b'"a" "b"'),
        ]
    )
)
RUNS = st.lists(st.tuples(st.integers(0, 20), st.lists(VALUES, min_size=1, max_size=6)), max_size=8)


def read(dialect: Dialect, lines: list[bytes], *, by_frame: bool) -> Any:
    """What a stream says and what is held of it, to the line that is refused."""
    parser: Any = dialect.Parser()
    held = dialect.Held()
    parse = parser.parse if by_frame else parser._lines._read
    events: list[Any] = []
    for line in lines:
        try:
            parsed = parse(line)
        except ValueError:
            return events, line, b"".join(held.stream())
        events += parsed.events
        held.add(sse.Block(b"", line, b"event"), parsed)
    return events, held.size_bytes, b"".join(held.stream())


@pytest.mark.parametrize("dialect", FRAMES, ids=lambda dialect: dialect.NAME)
@given(runs=RUNS)
@example(runs=[(0, [b'"a"'] * 6)])
@settings(deadline=None, max_examples=300)
def test_any_events_read_alike(dialect: Dialect, runs: list[tuple[int, list[bytes]]]) -> None:
    """Events and held bytes are the parser's, whatever frames and texts follow each other."""
    frames = FRAMES[dialect]
    lines = OPENINGS[dialect] + [
        frames[number % len(frames)].replace(TEXT, value)
        for number, values in runs
        for value in values
    ]
    assert read(dialect, lines, by_frame=True) == read(dialect, lines, by_frame=False)


@pytest.mark.parametrize("sample", [name for name in SAMPLES if not name.startswith("responses:")])
def test_every_reply_reads_alike(sample: str) -> None:
    """Of every sample reply, events and held bytes are the parser's."""
    dialect, stream, _ = SAMPLES[sample]
    blocks = sse.Decoder(1 << 24).feed(stream)
    lines = [block.data for block in blocks if block.data is not None]
    assert read(dialect, lines, by_frame=True) == read(dialect, lines, by_frame=False)
