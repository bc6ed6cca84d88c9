"""Recorded streams through loopguard: what it reads in them, and what it gives its callers."""

import json

import aiohttp
import pytest

from loopguard.app import Loopguard
from loopguard.core import sse
from loopguard.core.dialects import chat, runs
from loopguard.core.dialects.fields import Json
from loopguard.proxy.record import ExchangeRecord
from loopguard.settings import load
from tests.fake_openrouter import DONE, FakeOpenRouter, Step, head, split_every
from tests.samples import needs_recordings, recorded_exchanges, recorded_streams

STREAMS = recorded_streams()

each_recording = pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)

REQUEST = {
    "model": "m/x",
    "messages": [],
    "stream": True,
    "stream_options": {"include_usage": True},
}


def keys(whole: Json) -> list[frozenset[str]]:
    """The keys of a whole reply, of its choices and of their messages."""
    choices = whole["choices"]
    return [
        frozenset(whole),
        *(frozenset(choice) - {"error"} for choice in choices),  # stands where one failed
        *(frozenset(choice["message"]) for choice in choices),
    ]


def assembled(stream: bytes) -> Json:
    blocks = sse.Decoder(1 << 24).feed(stream)
    lines = [block.data for block in blocks if block.data not in (None, runs.SENTINEL)]
    return chat.assemble(json.loads(line) for line in lines if line is not None)


@needs_recordings
def test_assembled_replies_have_recorded_keys() -> None:
    """A reply assembled from a recorded stream has the keys of a reply recorded whole."""
    replies = [exchange.get("reply") or {} for exchange in recorded_exchanges()]
    recorded = {shape for reply in replies if "choices" in reply for shape in keys(reply)}
    for name, stream in STREAMS.items():
        assert set(keys(assembled(stream))) <= recorded, name


async def relayed(answer: list[Step], relay: str) -> tuple[bytes, ExchangeRecord]:
    """What the caller of a stream gets, and what loopguard reports of it."""
    records: list[ExchangeRecord] = []
    async with FakeOpenRouter([answer]) as fake:
        environ = {
            "LOOPGUARD_SERVER__PORT": "0",
            "LOOPGUARD_SERVER__ADMIN_PORT": "0",
            "LOOPGUARD_UPSTREAM__BASE_URL": fake.base_url,
        }
        async with (
            Loopguard(load(None, environ), records.append) as loopguard,
            aiohttp.ClientSession() as session,
            session.post(
                f"http://127.0.0.1:{loopguard.api_port}/v1/chat/completions",
                json=REQUEST,
                headers={"X-Loopguard-Relay": relay},
            ) as response,
        ):
            body = await response.read()
    (record,) = records
    return body, record


@each_recording
@pytest.mark.parametrize("size_bytes", [1, 1 << 20])
async def test_live_bytes_are_the_recorded_ones(stream: bytes, size_bytes: int) -> None:
    """A live caller gets a recorded stream byte for byte, and none of them is taken for a loop."""
    body, record = await relayed([split_every(size_bytes), head(), stream], "live")
    fault = b'"error":{' in stream
    # The attempt ends at an error, and so before the sentinel.
    assert body + (DONE if fault else b"") == stream
    assert record.outcome == ("refused" if fault else "completed")


@each_recording
async def test_held_replies_are_the_recorded_ones(stream: bytes) -> None:
    """A held caller gets the same reply in fewer events."""
    body, _ = await relayed([head(), stream], "hold")
    assert assembled(body) == assembled(stream)
    assert body.count(b"\n\n") <= stream.count(b"\n\n")
