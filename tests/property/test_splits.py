"""However a stream is split into reads, it says, shows and leaves the same."""

import asyncio
import json
import re
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loopguard.core import sse
from loopguard.core.detection.detector import Detector
from loopguard.core.dialects import chat, runs
from loopguard.core.dialects.fields import Json
from loopguard.core.events import Event
from loopguard.core.plan import Plan
from loopguard.core.retry import Completed, Outcome, Refused, Tripped
from loopguard.proxy.attempt import Attempt
from loopguard.proxy.clocks import Clocks
from loopguard.proxy.relay import Figures, HeldRelay, LiveRelay
from loopguard.settings import load
from tests.fake_openrouter import DONE, loop
from tests.samples import COMPLETED, cut, needs_recordings, recorded_streams, streams

DETECTION = load(None, {}).profiles["default"].detection
BOUND_BYTES = 1 << 24

STREAMS = streams()
WHOLE_STREAMS = {name: COMPLETED[name].stream() for name in COMPLETED} | recorded_streams()
CUTS = st.lists(st.integers(0, 1 << 17), max_size=40)

each_stream = pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)


class RecordingCaller:
    """Takes what a relay writes."""

    def __init__(self) -> None:
        self.written = b""

    def send(self, piece: bytes) -> bool:
        self.written += piece
        return True

    async def write(self, piece: bytes, _headers: Iterable[tuple[str, str]] = ()) -> None:
        self.send(piece)

    async def close(self, piece: bytes, _headers: Iterable[tuple[str, str]] = ()) -> None:
        self.send(piece)


class Reading(NamedTuple):
    """What became of a stream, whether any of it was of a reply, and the reply unless discarded."""

    outcome: Outcome
    brought: bool
    live: bytes
    held: bytes
    whole: Json


def pump(relay: LiveRelay | HeldRelay, pieces: Iterable[bytes]) -> tuple[Outcome, bool]:
    """Read a stream as an attempt does, one piece a read."""
    reads = iter(pieces)

    async def readany() -> bytes:
        return next(reads, b"")

    async def run() -> tuple[Outcome, bool]:
        clocks = Clocks(exchange_ends_at=0, exchange_timeout_s=0)
        attempt = Attempt(Detector(DETECTION), chat, relay, clocks, BOUND_BYTES)
        content = SimpleNamespace(readany=readany)
        response: Any = SimpleNamespace(content=content, connection=None)
        outcome = await attempt._pump(response)
        if isinstance(outcome, Completed | Refused):
            await relay.deliver()
        return outcome, attempt.first_delta_s is not None

    return asyncio.run(run())


def read(pieces: list[bytes]) -> Reading:
    """Read a stream twice, live and held."""
    plan = Plan(b"{}", stream=True, usage_asked=True, model=None)
    live: Any = RecordingCaller()
    outcome, brought = pump(LiveRelay(live, plan, Figures(1), BOUND_BYTES), pieces)
    held: Any = RecordingCaller()
    relay = HeldRelay(held, plan, Figures(1), BOUND_BYTES, chat)
    assert pump(relay, pieces) == (outcome, brought)
    whole = relay._held.whole() if isinstance(outcome, Completed | Refused) else {}
    return Reading(outcome, brought, live.written, held.written, whole)


def events(pieces: Iterable[bytes]) -> list[Event]:
    """The events of a stream as far as it can be read."""
    decoder, parser = sse.Decoder(BOUND_BYTES), chat.Parser()
    found: list[Event] = []
    try:
        for piece in pieces:
            for block in decoder.feed(piece):
                if block.data is not None:
                    found += parser.parse(block.data).events
    except ValueError:
        pass
    return found


def event_by_event(stream: bytes) -> list[bytes]:
    """The reads of a stream whose model is slower than the network."""
    return [piece for piece in re.split(rb"(?<=\n\n)", stream) if piece]


def chunks(stream: bytes) -> list[Json]:
    blocks = sse.Decoder(BOUND_BYTES).feed(stream)
    lines = [block.data for block in blocks if block.data not in (None, runs.SENTINEL)]
    return [json.loads(line) for line in lines if line is not None]


@each_stream
@given(cuts=CUTS)
@settings(max_examples=25)
def test_any_split_gives_the_same_reading(stream: bytes, cuts: list[int]) -> None:
    """Any split of a stream gives the same events, verdict, held reply and live bytes."""
    whole, pieces = read([stream]), read(cut(stream, cuts))
    assert events(cut(stream, cuts)) == events([stream])
    assert pieces._replace(live=b"") == whole._replace(live=b"")
    if isinstance(whole.outcome, Completed | Refused):
        assert pieces.live == whole.live


@each_stream
def test_byte_by_byte_gives_the_same_reading(stream: bytes) -> None:
    """A stream that comes byte by byte reads as it does at once, and no other split shows more."""
    most = read(cut(stream, range(len(stream))))
    for pieces in ([stream], event_by_event(stream)):
        reading = read(pieces)
        assert events(pieces) == events(cut(stream, range(len(stream))))
        assert reading._replace(live=b"") == most._replace(live=b"")
        assert most.live.startswith(reading.live)
    assert stream.startswith(most.live)


@pytest.mark.parametrize("stream", WHOLE_STREAMS.values(), ids=WHOLE_STREAMS)
@given(trailing=st.binary(max_size=300))
@example(trailing=b"data: {}\n\n")
@settings(max_examples=25)
def test_live_bytes_are_the_upstreams_own(stream: bytes, trailing: bytes) -> None:
    """A live caller gets the upstream's bytes to the sentinel or to the error before it."""
    reading = read([stream + trailing])
    if isinstance(reading.outcome, Refused):
        assert reading.live + DONE == stream
    else:
        assert reading.outcome == Completed()
        assert reading.live == stream


@pytest.mark.parametrize("stream", WHOLE_STREAMS.values(), ids=WHOLE_STREAMS)
def test_live_and_held_are_the_same_reply(stream: bytes) -> None:
    """The reply assembled from the live bytes is the one assembled from the held ones."""
    reading = read([stream])
    assert chat.assemble(chunks(reading.live)) == reading.whole
    assert chat.assemble(chunks(reading.held)) == reading.whole


@given(delta_chars=st.integers(1, 400), cuts=CUTS)
@settings(max_examples=25)
def test_verdict_stands_at_one_character(delta_chars: int, cuts: list[int]) -> None:
    """A loop trips at the same word and character, whatever its deltas and reads."""
    stream = loop(chars=5_000, delta_chars=delta_chars).stream()
    outcome = read(cut(stream, cuts)).outcome
    assert isinstance(outcome, Tripped)
    assert (outcome.trip.words, outcome.trip.chars) == (960, 3840)
    assert (outcome.words, outcome.chars) == (960, 3840)


@needs_recordings
def test_recorded_streams_are_among_them() -> None:
    """Every recorded stream was read above."""
    assert len(recorded_streams()) == 8
