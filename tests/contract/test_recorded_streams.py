"""Every recorded stream of every wire: read, relayed, held and assembled."""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from loopguard.app import Loopguard
from loopguard.core import sse
from loopguard.core.detection.detector import Detector
from loopguard.core.dialects import DIALECTS, Dialect
from loopguard.core.events import (
    ArgumentsDelta,
    Event,
    Finish,
    GenerationId,
    ReasoningDelta,
    TextDelta,
    UpstreamFault,
    Usage,
)
from loopguard.proxy.record import ExchangeRecord
from loopguard.settings import load
from tests.fake_openrouter import FakeOpenRouter, head, split_every

SHARED = Path(os.environ.get("LOOPGUARD_SHARED", Path(__file__).parents[3] / "shared"))
TRANSCRIPTS = SHARED / "transcripts"
FOLDERS = {
    "openrouter-chat": "/chat/completions",
    "openrouter-responses": "/responses",
    "openai-responses": "/responses",
    "anthropic-messages": "/messages",
}
RECORDED = sorted(
    (path, file) for folder, path in FOLDERS.items() for file in TRANSCRIPTS.glob(f"{folder}/*.sse")
)

pytestmark = pytest.mark.skipif(not RECORDED, reason=f"no recorded exchanges at {TRANSCRIPTS}")
every_stream = pytest.mark.parametrize(
    ("path", "file"), RECORDED, ids=[file.stem for _, file in RECORDED]
)


def blocks(stream: bytes, size: int) -> list[sse.Block]:
    decoder = sse.Decoder(1 << 24)
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
    found = [block for piece in pieces for block in decoder.feed(piece)]
    assert b"".join(block.raw for block in found) + decoder.rest == stream
    return [block for block in found if block.data is not None]


def events(dialect: Dialect, stream: bytes, size: int) -> list[Event]:
    parser = dialect.Parser()
    found = blocks(stream, size)
    return [event for block in found for event in parser.parse(block.data or b"").events]


def whole(dialect: Dialect, stream: bytes) -> dict[str, Any]:
    parser, held = dialect.Parser(), dialect.Held()
    for block in blocks(stream, len(stream)):
        held.add(block, parser.parse(block.data or b""))
    again = b"".join(held.stream())
    parser, held_again = dialect.Parser(), dialect.Held()
    for block in blocks(again, len(again)):
        held_again.add(block, parser.parse(block.data or b""))
    assert held_again.whole() == held.whole()
    return held.whole()


@every_stream
def test_any_split_gives_the_same_events(path: str, file: Path) -> None:
    """Whole, byte by byte, in other pieces and with CRLF: the same events are read."""
    stream = file.read_bytes()
    expected = events(DIALECTS[path], stream, len(stream))
    for size in (1, 7, 1460):
        assert events(DIALECTS[path], stream, size) == expected
    carriage = stream.replace(b"\n", b"\r\n")
    assert events(DIALECTS[path], carriage, 11) == expected


@every_stream
def test_every_stream_tells_where_it_came_from_and_how_it_ended(path: str, file: Path) -> None:
    """A recorded stream names its model, carries something, tells its usage and ends."""
    found = events(DIALECTS[path], file.read_bytes(), 4096)
    kinds = {type(event) for event in found}
    assert {GenerationId, Usage, Finish} <= kinds
    assert kinds & {TextDelta, ReasoningDelta, ArgumentsDelta}
    assert (UpstreamFault in kinds) == (file.stem == "openrouter_stream_error")


@every_stream
def test_no_recorded_stream_trips(path: str, file: Path) -> None:
    """The detector as it is shipped lets every recorded reply pass."""
    profile = load(None, {}).profiles["default"]
    detector = Detector(profile.detection)
    for event in events(DIALECTS[path], file.read_bytes(), 4096):
        match event:
            case TextDelta(text, choice):
                assert detector.feed("content", text, choice) is None
            case ReasoningDelta(text, choice):
                assert detector.feed("reasoning", text, choice) is None
            case ArgumentsDelta(text, choice, call):
                assert detector.feed("arguments", text, choice, call) is None
    assert not detector.suspected


@every_stream
def test_what_is_assembled_has_the_shape_of_a_whole_reply(path: str, file: Path) -> None:
    """A reply rebuilt from a recorded stream has the keys that recorded whole replies have."""
    reply = whole(DIALECTS[path], file.read_bytes())
    if path == "/messages":
        assert {"id", "type", "role", "model", "stop_reason", "stop_sequence", "usage"} <= set(
            reply
        )
        for block in reply["content"]:
            assert "type" in block
            assert not isinstance(block.get("input"), str)
        return
    if path == "/responses":
        # The terminal event's own object, byte for byte.
        assert json.dumps(reply, separators=(",", ":"), ensure_ascii=False)[:200] in (
            file.read_text("utf-8")
        )
        assert reply["object"] == "response"
        return
    recorded = [
        exchange["reply"]
        for exchange in map(json.loads, (it.read_text() for it in file.parent.glob("*.json")))
        if "choices" in (exchange.get("reply") or {})
    ]
    assert keys(reply) <= set().union(*map(keys, recorded))


def keys(reply: dict[str, Any]) -> set[frozenset[str]]:
    """The keys of a whole reply of chat, of its choices and of their messages."""
    choices = reply["choices"]
    return {
        frozenset(reply),
        *(frozenset(choice) - {"error"} for choice in choices),  # stands where one failed
        *(frozenset(choice["message"]) for choice in choices),
    }


@asynccontextmanager
async def relaying(stream: bytes, records: list[ExchangeRecord]) -> AsyncIterator[str]:
    """loopguard in front of an upstream that sends these bytes, at first in small pieces."""
    async with FakeOpenRouter([[split_every(61), head(), stream], [head(), stream]]) as fake:
        environ = {
            "LOOPGUARD_SERVER__PORT": "0",
            "LOOPGUARD_SERVER__ADMIN_PORT": "0",
            "LOOPGUARD_UPSTREAM__BASE_URL": fake.base_url,
        }
        async with Loopguard(load(None, environ), records.append) as loopguard:
            yield f"http://127.0.0.1:{loopguard.api_port}/v1"


@every_stream
async def test_live_is_byte_exact_and_hold_is_the_same_reply(path: str, file: Path) -> None:
    """Live, a caller gets the upstream's bytes; held, the same reply; whole, its object.

    However the bytes come, none of the replies is taken for a loop or for a broken one. After an
    error nothing leaves: a sentinel would tell a caller that the reply is complete.
    """
    stream = file.read_bytes()  # noqa: ASYNC240 - nothing else runs yet
    if file.stem == "openrouter_stream_error":
        stream = stream.removesuffix(b"data: [DONE]\n\n")
    asked: dict[str, Any] = {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    records: list[ExchangeRecord] = []
    async with relaying(stream, records) as base_url, aiohttp.ClientSession() as session:

        async def ask(relay: str, **more: Any) -> bytes:
            headers = {"X-Loopguard-Relay": relay}
            body = asked | more
            async with session.post(base_url + path, json=body, headers=headers) as response:
                assert response.status == 200
                return await response.read()

        for _ in range(2):
            assert await ask("live") == stream
        held = await ask("hold")
        assert len(held) < len(stream)
        assert held.count(b"\n\n") <= stream.count(b"\n\n")
        assert whole(DIALECTS[path], held) == whole(DIALECTS[path], stream)
        assert json.loads(await ask("hold", stream=False)) == whole(DIALECTS[path], stream)
    ending = "refused" if file.stem == "openrouter_stream_error" else "completed"
    assert [record.outcome for record in records] == [ending] * 4
