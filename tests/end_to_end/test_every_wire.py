"""Every guarded path, on every channel of its wire, in front of an endpoint that loops."""

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, get_args

import aiohttp
import anthropic
import openai
import pytest

from loopguard.app import Loopguard
from loopguard.core import sse
from loopguard.core.dialects import DIALECTS
from loopguard.core.events import CHANNELS, Channel, Event, Finish, UpstreamFault
from loopguard.proxy.routes import Routes
from loopguard.runaway import WIRES as RUNAWAY_WIRES
from loopguard.settings import load
from tests.end_to_end.conftest import ENVIRONMENT, Guarded
from tests.fake_openrouter import (
    GENERATION_ID,
    FakeOpenRouter,
    Message,
    Reply,
    ToolCall,
    head,
    loop,
    thought,
)
from tests.fake_openrouter.server import WIRES, Answer

GOOD = Reply(
    Message(
        "The good answer.",
        reasoning=(thought("Let me see.", "sig"),),
        tool_calls=(ToolCall("write_file", '{"path": "a"}', "call_9"),),
    )
)
EVERY_CHANNEL = [(path, channel) for path in DIALECTS for channel in DIALECTS[path].CHANNELS]
ASKED = {"model": "m/x", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 9}


@asynccontextmanager
async def guarded(script: Iterable[Answer]) -> AsyncIterator[Guarded]:
    """loopguard with every rule armed, in front of a fake."""
    async with FakeOpenRouter(script) as fake:
        settings = load(None, ENVIRONMENT | {"LOOPGUARD_UPSTREAM__BASE_URL": fake.base_url})
        profile = settings.profiles["default"]
        detection = replace(profile.detection, max_identical_calls=16)
        settings = replace(settings, profiles={"default": replace(profile, detection=detection)})
        ours = Guarded(fake, Loopguard(settings))
        ours.loopguard._on_exchange = ours.records.append
        async with ours.loopguard:
            yield ours


async def ask(ours: Guarded, path: str, relay: str = "hold", **more: Any) -> tuple[int, bytes]:
    """A request's status and body."""
    headers = {"X-Loopguard-Relay": relay}
    async with (
        aiohttp.ClientSession() as session,
        session.post(ours.origin + path, json=ASKED | more, headers=headers) as response,
    ):
        return response.status, await response.read()


def events(path: str, body: bytes) -> list[Event]:
    parser = DIALECTS[path].Parser()
    found = sse.Decoder(1 << 24).feed(body)
    return [
        event
        for block in found
        if block.data is not None
        for event in parser.parse(block.data).events
    ]


def outcomes(ours: Guarded) -> list[str]:
    return [attempt.outcome for attempt in ours.records[-1].attempts]


@pytest.mark.parametrize(("path", "channel"), EVERY_CHANNEL)
async def test_a_loop_is_cut_and_asked_again(path: str, channel: Channel) -> None:
    """After two loops in any channel, a caller gets the good reply alone, streamed and whole."""
    looping = loop("All work and no play. ", channel=channel)
    async with guarded([looping, looping, GOOD]) as ours:
        status, streamed = await ask(ours, "/v1" + path, stream=True)
        assert (status, outcomes(ours)) == (200, ["looped", "looped", "completed"])
        assert [attempt.channel for attempt in ours.records[-1].attempts][:2] == [channel] * 2
        ours.fake.script = [looping, looping, GOOD]
        status, whole = await ask(ours, "/v1" + path)
        assert (status, outcomes(ours)) == (200, ["looped", "looped", "completed"])
        generation_id = ours.fake.attempts[-1].generation_id
    assert b"All work" not in streamed + whole
    expected = json.dumps(WIRES[path].whole(GOOD)).replace(GENERATION_ID, generation_id)
    assert json.loads(whole) == json.loads(expected)
    assert any(isinstance(event, Finish) for event in events(path, streamed))


@pytest.mark.parametrize(("path", "channel"), EVERY_CHANNEL)
async def test_a_loop_that_was_begun_live_ends_as_a_failure(path: str, channel: Channel) -> None:
    """A live stream whose reply loops ends in the dialect's own error, and in nothing else."""
    looping = loop("All work and no play. ", channel=channel)
    async with guarded([looping]) as ours:
        _, body = await ask(ours, "/v1" + path, "live", stream=True)
        assert outcomes(ours) == ["looped"]
    *_, last = events(path, body)
    assert isinstance(last, UpstreamFault)
    assert b"model_response_loop" in body
    assert not any(isinstance(event, Finish) for event in events(path, body))
    assert b"output_item.done" not in body
    numbers = [
        chunk["sequence_number"]
        for block in sse.Decoder(1 << 24).feed(body)
        if block.data is not None and "sequence_number" in (chunk := json.loads(block.data))
    ]
    assert numbers == list(range(len(numbers)))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", DIALECTS)
async def test_always_looping_costs_four_attempts_once(path: str, stream: bool) -> None:  # noqa: FBT001
    """An endpoint that always loops costs four attempts, and the same request again none."""
    async with guarded([loop()]) as ours:
        for _ in range(2):
            status, body = await ask(ours, "/v1" + path, stream=stream)
            assert status == (200 if stream else 502)
            assert b"model_response_loop" in body
            assert len(ours.fake.attempts) == 4


@pytest.mark.parametrize("path", [it for it in DIALECTS if "arguments" in DIALECTS[it].CHANNELS])
@pytest.mark.parametrize("arguments", ["", "{}"])
async def test_a_loop_of_empty_calls_is_cut(path: str, arguments: str) -> None:
    """A reply of hundreds of calls with the same or no arguments is cut and asked again."""
    calls = tuple(ToolCall("list_files", arguments, f"call_{number}") for number in range(500))
    async with guarded([Reply(Message(tool_calls=calls)), GOOD]) as ours:
        status, body = await ask(ours, "/v1" + path, stream=True)
    assert (status, outcomes(ours)) == (200, ["looped", "completed"])
    assert ours.records[0].attempts[0].rule == "calls"
    assert b"list_files" not in body


@pytest.mark.parametrize("path", DIALECTS)
@pytest.mark.parametrize(
    "spelling",
    ["/v1{}", "/api/v1{}", "/profiles/default/v1{}", "/v1/{}/", "/v1{}?beta=true", "/v1/%2E/.{}"],
)
async def test_no_spelling_of_a_path_gets_past_the_guard(path: str, spelling: str) -> None:
    """Every spelling of a guarded path is served by its dialect, or not at all."""
    async with guarded([GOOD]) as ours:
        status, body = await ask(ours, spelling.format(path), stream=True)
        if status == 200:
            assert [record.dialect for record in ours.records] == [DIALECTS[path].NAME]
        else:
            assert (status, ours.fake.requests) == (404, [])
            assert json.loads(body)["error"]["message"]


async def test_every_path_that_replies_is_guarded() -> None:
    """A path on which the upstream replies has a dialect; there is one way in, and it knows them.

    The fake's wires are the upstream's that openrouter.md names. A dialect watches every channel,
    or its wire cannot carry the one that it leaves out.
    """
    assert set(DIALECTS) == set(WIRES) == set(RUNAWAY_WIRES)
    assert set(CHANNELS) == set(get_args(Channel))
    unit = "All work and no play. "
    for path, wire in WIRES.items():
        for channel in CHANNELS:
            carried = unit.encode() in b"".join(wire.events(loop(unit, channel=channel, chars=500)))
            assert carried == (channel in DIALECTS[path].CHANNELS), (path, channel)
    async with guarded([]) as ours:
        handlers = [route.handler for route in ours.api._runner.app.router.routes()]
    assert {handler.__func__ for handler in handlers} == {Routes.handle}


@pytest.mark.parametrize("path", DIALECTS)
async def test_refusals_have_the_form_of_the_path(path: str) -> None:
    """What is refused before any upstream request has the form of the path's own API."""
    async with guarded([GOOD]) as ours:
        status, body = await ask(ours, "/v1" + path, stream="yes")
    assert status == 400
    told = json.loads(body)
    assert ("type" in told) == (path == "/messages")
    assert ("metadata" in told) == (path == "/responses")
    assert "boolean" in told["error"]["message"]


@pytest.mark.parametrize("path", ["/responses", "/messages"])
async def test_an_error_after_part_of_a_whole_reply_is_an_answer_of_its_own(path: str) -> None:
    """Where a whole reply cannot tell of an error that came late, the caller gets the error."""
    fault = {"code": 400, "message": "Token limit reached"}
    async with guarded([Reply("part of it", fault=fault)]) as ours:
        status, body = await ask(ours, "/v1" + path)
        assert (status, json.loads(body)["error"]["message"]) == (400, "Token limit reached")
        _, streamed = await ask(ours, "/v1" + path, stream=True)
    assert b"part of " in streamed
    assert isinstance(events(path, streamed)[-1], UpstreamFault)


async def test_the_generation_of_a_message_is_the_headers() -> None:
    """On a wire whose body names no generation, the one in the response's headers is recorded."""
    async with guarded([GOOD]) as ours:
        await ask(ours, "/v1/messages")
        (attempt,) = ours.records[0].attempts
        assert attempt.generation == ours.fake.attempts[0].generation_id
        assert attempt.model == "openai/gpt-4o-mini"


async def test_openais_client_takes_a_held_response() -> None:
    """OpenAI's own client follows a held stream to the reply, and a failed one to its failure."""
    asked: dict[str, Any] = {"model": "m/x", "input": "hello"}
    async with guarded([loop(), GOOD]) as ours, ours.client() as client:
        async with client.responses.stream(**asked) as stream:
            kinds = [event.type async for event in stream]
            reply = await stream.get_final_response()
        assert reply.output_text == "The good answer."
        assert kinds[0] == "response.created"
        whole = await client.responses.create(**asked)
        assert whole.output_text == "The good answer."
        ours.fake.script = [loop()]
        async with client.responses.stream(**asked, instructions="loop") as stream:
            last = [event async for event in stream][-1]
        assert last.type == "response.failed"
        assert last.response.error.code == "invalid_prompt"
        with pytest.raises(openai.APIError, match="looped every attempt"):
            await client.responses.create(**asked, instructions="loop again")


async def test_anthropics_client_takes_a_held_message() -> None:
    """Anthropic's own client follows a held stream to the message, and raises for a failed one."""
    asked: dict[str, Any] = {**ASKED, "max_tokens": 100}
    async with (
        guarded([loop(), GOOD]) as ours,
        anthropic.AsyncAnthropic(base_url=ours.origin, api_key="sk-caller") as client,
    ):
        async with client.messages.stream(**asked) as stream:
            message = await stream.get_final_message()
        assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
        assert message.content[0].signature == "sig"
        assert message.content[2].input == {"path": "a"}
        assert message.usage.output_tokens == 500
        whole = await client.messages.create(**asked)
        assert [block.type for block in whole.content] == ["thinking", "text", "tool_use"]
        ours.fake.script = [loop()]
        before = len(ours.fake.attempts)
        with pytest.raises(anthropic.APIStatusError, match="model_response_loop"):
            await client.messages.create(**asked, system="loop")
        assert len(ours.fake.attempts) == before + 4
        failing = await client.messages.create(**asked, system="loop again", stream=True)
        with pytest.raises(anthropic.APIStatusError, match="model_response_loop"):
            await anext(aiter(failing))
        assert len(ours.fake.attempts) == before + 8


async def test_a_stream_that_opens_and_goes_silent_is_no_reply() -> None:
    """An upstream that ends its stream before the response does is asked again."""
    begun = list(WIRES["/responses"].events(GOOD))[:6]
    async with guarded([[head(), *begun], GOOD]) as ours:
        status, body = await ask(ours, "/v1/responses", stream=True)
    assert (status, outcomes(ours)) == (200, ["broken", "completed"])
    assert body.count(b"response.created") == 1
