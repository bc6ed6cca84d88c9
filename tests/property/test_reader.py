"""What is read by its frame is what the parser reads."""

import json
import re
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loopguard.core import sse
from loopguard.core.dialects import Dialect, chat, completions, messages, responses
from loopguard.core.dialects.reader import Reader
from loopguard.core.events import Event, ReasoningDelta, Run, TextDelta
from tests.samples import cut
from tests.unit.core.dialects.wires import SAMPLES

TEXT = b'"TEXT"'
BOUND_BYTES = 1 << 24
CUTS = st.lists(st.integers(0, 1 << 14), max_size=12)


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
        chunk(delta={"reasoning": "TEXT", "reasoning_details": [{"text": "TEXT", "index": 0}]}),
        chunk(delta={"reasoning": "TEXT", "reasoning_details": [{"text": "TEXT"}, {"text": "a"}]}),
        chunk(delta={"reasoning": "TEXT", "x": "TEXT"}),
        chunk(delta={"content": "TEXT", "x": "TEXT"}),
        chunk(delta={"content": "TEXT", "reasoning": "TEXT"}),
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
        b'{"type":"content_block_delta","index":1,"delta":{"thinking":"TEXT","type":"thinking_delta"}}',
        b'{"type":"ping"}',
        b'{"type":"message_stop","text":"TEXT"}',
    ],
    responses: [
        b'{"type":"response.output_text.delta","output_index":0,"delta":"TEXT"}',
        b'{"type":"response.output_text.delta","output_index":1,"delta":"TEXT"}',
        b'{"type":"response.output_text.done","output_index":0,"text":"TEXT"}',
        b'{"type":"response.reasoning_text.delta","output_index":0,"delta":"TEXT"}',
        b'{"type":"response.output_text.delta","output_index":0,"x":{"delta":"TEXT"},"delta":"a"}',
    ],
}
OPENINGS: dict[Dialect, list[bytes]] = {
    chat: [],
    completions: [],
    responses: [],
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


def merged(events: list[Event]) -> list[Event]:
    """Texts that follow each other, as one."""
    joined: list[Event] = []
    for event in events:
        match joined, event:
            case [*_, before], TextDelta() | ReasoningDelta() as after if (
                type(before) is type(after) and before.choice == after.choice
            ):
                joined[-1] = after._replace(text=before.text + after.text)
            case _:
                joined.append(event)
    return joined


# Where a text stands within its choice: several may interleave, and are kept apart.
PART = re.compile(rb'"(?:output_index|content_block_\w+","index)":(\d+)')


def by_part(dialect: Dialect, stream: bytes) -> list[Event]:
    """The events of each part of each choice together, its thinking last, whatever came first."""
    parser = dialect.Parser()
    placed: list[tuple[tuple[int, int, bool], Event]] = []
    for block in sse.Decoder(BOUND_BYTES).feed(stream):
        if block.data is not None:
            found = PART.search(block.data)
            part = -1 if found is None else int(found[1])
            for event in parser.parse(block.data).events:
                place = (getattr(event, "choice", -1), part, type(event) is ReasoningDelta)
                placed.append((place, event))
    return merged([event for _, event in sorted(placed, key=lambda each: each[0])])


def by_frame(dialect: Dialect, reads: list[bytes]) -> tuple[list[Event], str, bytes, bytes]:
    """What a stream says and what is held of it, to the event that is refused; and its bytes."""
    reader = Reader(dialect.Parser(), dialect.TEXT_FIELDS, BOUND_BYTES)
    held = dialect.Held()
    events: list[Event] = []
    raw = b""
    refusal = ""
    try:
        for read in reads:
            lone = reader.read_lone(read)
            for parsed in reader.read(read) if lone is None else [Run(read, *lone)]:
                if isinstance(parsed, Run):
                    channel, choice, times = parsed.place
                    kind = TextDelta if channel == "content" else ReasoningDelta
                    events.append(kind(parsed.text, choice))
                    held.extend(parsed.raw, parsed.text, times)
                    raw += parsed.raw
                    continue
                block, what = parsed
                raw += block.raw
                if what is not None:
                    events += what.events
                    held.add(block, what)
    except ValueError as error:
        refusal = str(error)
    return merged(events), refusal, b"".join(held.stream()), raw


def by_parser(dialect: Dialect, stream: bytes) -> tuple[list[Event], str, bytes, bytes]:
    """The same, every event by itself and by the parser."""
    parser, held = dialect.Parser(), dialect.Held()
    events: list[Event] = []
    raw = b""
    refusal = ""
    try:
        for block in sse.Decoder(BOUND_BYTES).feed(stream):
            if block.data is not None:
                parsed = parser.parse(block.data)
                events += parsed.events
                held.add(block, parsed)
            raw += block.raw
    except ValueError as error:
        refusal = str(error)
    return merged(events), refusal, b"".join(held.stream()), raw


def assert_alike(dialect: Dialect, stream: bytes, reads: list[bytes]) -> None:
    """Assert that the two read alike, and that what they hold says the same of each part."""
    *framed, held, raw = by_frame(dialect, reads)
    *parsed, held_too, raw_too = by_parser(dialect, stream)
    assert framed == parsed
    assert raw == raw_too
    assert by_part(dialect, held) == by_part(dialect, held_too)


@pytest.mark.parametrize("dialect", FRAMES, ids=lambda dialect: dialect.NAME)
@given(runs=RUNS, cuts=CUTS)
@example(runs=[(0, [b'"a"'] * 6)], cuts=[])
@example(runs=[(0, [b'"a"']), (3, [b'"b"', b'"b"', b'"' + b"long " * 900 + b'"', b'"b"'])], cuts=[])
@example(runs=[(0, [b'""']), (4, [b'"0"', b'"0"', b'"0"', b'""', b'"0"'])], cuts=[641])
@example(runs=[(9, [b'"0"', b'"0"', b'""', b'"0"'])], cuts=[])
@settings(max_examples=300)
def test_any_events_read_alike(
    dialect: Dialect, runs: list[tuple[int, list[bytes]]], cuts: list[int]
) -> None:
    """Events and held replies are the parser's, whatever frames, texts and reads follow."""
    frames = FRAMES[dialect]
    lines = OPENINGS[dialect] + [
        frames[number % len(frames)].replace(TEXT, value)
        for number, values in runs
        for value in values
    ]
    stream = b"".join(sse.encode(line, b"event") for line in lines)
    assert_alike(dialect, stream, cut(stream, cuts))


@pytest.mark.parametrize("sample", SAMPLES)
@given(cuts=CUTS)
@settings(max_examples=5)
def test_every_reply_reads_alike(sample: str, cuts: list[int]) -> None:
    """Of every sample reply, events and held reply are the parser's, in any reads."""
    dialect, stream, _ = SAMPLES[sample]
    assert_alike(dialect, stream, cut(stream, cuts))
