"""The real openai client behind loopguard, in front of an endpoint that loops."""

import asyncio
import json
from typing import Any

import aiohttp
import openai
import pytest

from tests.end_to_end.conftest import Guard, Guarded
from tests.fake_openrouter import Message, Reply, head, loop, thought, wait

GOOD = Reply(Message("The good answer.", reasoning=(thought("Let me see.", "sig"),)))
# Figures of the document hold for its own rule alone.
DOCUMENT = "/profiles/document/v1"
REQUEST: dict[str, Any] = {"model": "m/x", "messages": [{"role": "user", "content": "hello"}]}


async def ask_whole(guarded: Guarded, relay: str = "hold") -> Any:
    async with guarded.client(DOCUMENT) as client:
        return await client.chat.completions.create(
            **REQUEST, extra_headers={"X-Loopguard-Relay": relay}
        )


async def ask_stream(guarded: Guarded, relay: str = "hold", **more: Any) -> list[Any]:
    async with guarded.client(DOCUMENT) as client:
        stream = await client.chat.completions.create(
            **REQUEST, stream=True, extra_headers={"X-Loopguard-Relay": relay}, **more
        )
        return [chunk async for chunk in stream]


def text_of(chunks: list[Any]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


async def test_whole_reply_is_the_fakes_own(guarded: Guard) -> None:
    """After two loops a whole reply parses into the object that the fake answers itself."""
    async with guarded([loop(), loop(), GOOD]) as ours:
        reply = await ask_whole(ours)
        ours.fake.script = [GOOD]
        async with openai.AsyncOpenAI(base_url=ours.fake.base_url, api_key="k") as client:
            direct = await client.chat.completions.create(**REQUEST)
    reply.id = direct.id
    assert reply.model_dump() == direct.model_dump()
    assert reply.provider == "OpenAI"


@pytest.mark.parametrize("usage", [True, False])
async def test_held_stream_is_the_good_reply_alone(guarded: Guard, usage: bool) -> None:  # noqa: FBT001
    """After two loops a held stream holds the good reply and nothing of the looping ones."""
    async with guarded([loop(), loop(), GOOD]) as ours:
        chunks = await ask_stream(ours, stream_options={"include_usage": usage})
    assert text_of(chunks) == "The good answer."
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[-1].usage.cost == 0.008262
    (record,) = ours.records
    assert [attempt.outcome for attempt in record.attempts] == ["looped", "looped", "completed"]
    assert [attempt.chars for attempt in record.attempts[:2]] == [12261, 12261]


@pytest.mark.parametrize("stream", [True, False])
async def test_always_looping_costs_four_attempts_once(guarded: Guard, stream: bool) -> None:  # noqa: FBT001
    """An endpoint that always loops costs one call four attempts, and the same call again none."""
    ask = ask_stream if stream else ask_whole
    async with guarded([loop()]) as ours:
        for _ in range(2):
            with pytest.raises(openai.APIError) as caught:
                await ask(ours)
            assert caught.value.type == "model_response_loop"
            assert "totalling 49044 characters" in str(caught.value)
            assert len(ours.fake.attempts) == 4
        assert [record.outcome for record in ours.records] == ["looped", "remembered"]


async def open_upstreams(ours: Guarded) -> str:
    async with aiohttp.ClientSession() as session, session.get(ours.admin + "/metrics") as shown:
        text = await shown.text()
    (line,) = (line for line in text.splitlines() if line.startswith("loopguard_open_upstreams "))
    return line.split()[1]


async def test_connection_is_used_again(guarded: Guard) -> None:
    """A connection whose body ends a moment after its sentinel serves the next request too."""
    ended = asyncio.Event()
    async with guarded([[head(), *GOOD.events(), wait(ended)], GOOD]) as ours:
        await ask_whole(ours)
        ended.set()
        while await open_upstreams(ours) != "0.0":
            pass
        await ask_whole(ours)
        assert len(ours.fake.attempts) == 2
        assert len(ours.fake.connections) == 1


async def test_large_request_is_sent_as_it_is(guarded: Guard) -> None:
    """A request of some megabytes, as one with pictures is, is sent whole, in each attempt."""
    message = {"role": "user", "content": "picture " * 500_000}
    async with guarded([loop(), GOOD]) as ours, ours.client() as client:
        reply = await client.chat.completions.create(model="m/x", messages=[message])
        assert reply.choices[0].message.content == "The good answer."
        first, second = (json.loads(attempt.body) for attempt in ours.fake.attempts)
        assert first == second
        assert first["messages"] == [message]
