"""Live: the upstream's bytes leave as they came, until the reply is suspected of looping."""

import asyncio
import json
from typing import Any

import openai
import pytest

from tests.end_to_end.conftest import Guard, Guarded
from tests.end_to_end.raw_caller import (
    STREAM,
    RawCaller,
    ask,
    asked,
    calling,
    connected,
    turning_until,
)
from tests.fake_openrouter import (
    DONE,
    GENERATION_ID,
    PROCESSING,
    Message,
    Reply,
    ToolCall,
    close,
    encrypted,
    event,
    head,
    loop,
    reset,
    split_every,
    stall,
    thought,
    wait,
)
from tests.fake_openrouter.chat import UsageShape

RICH = Reply(
    Message(
        "Ünïcode, 漢字 and \U0001f600.",
        reasoning=(thought("Let me see.", "sig"), encrypted("blob")),
        tool_calls=(ToolCall("look", '{"a": "ß"}', "call_1"),),
    ),
    comments=3,
    comment_every=2,
)
GOOD = Reply("The good answer.")
EVENTS = list(GOOD.events())
LIVE = asked("live")
WITH_USAGE = STREAM | {"stream_options": {"include_usage": True}}
TRIP_CHARS = 3_840


async def ask_live(guarded: Guarded, body: dict[str, Any] = STREAM) -> RawCaller:
    return await ask(guarded, body, LIVE[1])


def chunks_of(body: bytes) -> list[dict[str, Any]]:
    lines = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: ")]
    return [json.loads(line) for line in lines if line != b"[DONE]"]


def text_of(body: bytes) -> str:
    deltas = [choice["delta"] for chunk in chunks_of(body) for choice in chunk.get("choices", ())]
    return "".join(delta.get("content") or "" for delta in deltas)


@pytest.mark.parametrize("size_bytes", [None, 1, 7, 100])
@pytest.mark.parametrize("age", [2025, 2026])
async def test_bytes_are_the_upstreams(guarded: Guard, age: Any, size_bytes: int | None) -> None:
    """The caller's bytes are the upstream's, comments included, however they were split."""
    reply = Reply(RICH.message, age=age, comments=3, comment_every=2)
    split = [] if size_bytes is None else [split_every(size_bytes)]
    async with guarded([[*split, head(), *reply.events()]]) as ours:
        caller = await ask_live(ours, WITH_USAGE)
        (attempt,) = ours.fake.attempts
        assert caller.body == reply.stream(attempt.generation_id)
        assert ours.records[0].outcome == "completed"


async def test_odd_framing_is_the_upstreams_too(guarded: Guard) -> None:
    """CRLF, several data lines, unknown fields, ids and blank lines leave as they came."""
    odd = (
        b"\r\n: c\r\nid: 7\r\nevent: message\r\ndata: "
        b'{"choices":\r\ndata: [{"index":0,"delta":{"content":"x"}}],\r\ndata: "later":1}\r\n\r\n'
        b"\n\nretry: 5\n\ndata:"
        b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n\n'
    )
    for split in ([], [split_every(1)]):
        async with guarded([[*split, head(), odd, DONE]]) as ours:
            assert (await ask_live(ours)).body == odd + DONE


async def test_deltas_leave_as_they_come(guarded: Guard) -> None:
    """A delta reaches the caller while the upstream still writes."""
    gate = asyncio.Event()
    async with guarded([[head(), *EVENTS[:2], wait(gate), *EVENTS[2:]]]) as ours:
        async with calling(ours, *LIVE) as caller:
            await caller.until(b"The good")
            assert not ours.fake.attempts[0].answered
            gate.set()
            await caller.whole()
        assert text_of(caller.body) == "The good answer."


async def test_caller_without_chunks_gets_the_events_alone(guarded: Guard) -> None:
    """A caller of HTTP/1.0 gets a body without chunks, and the connection's end for its end."""
    gate = asyncio.Event()
    async with (
        guarded([[head(), *EVENTS[:2], wait(gate), *EVENTS[2:]]]) as ours,
        connected(ours.loopguard.api_port) as caller,
    ):
        body = json.dumps(WITH_USAGE).encode()
        line = "POST /v1/chat/completions HTTP/1.0\r\nX-Loopguard-Relay: live\r\n"
        await caller.write(f"{line}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await caller._reader.readuntil(b"\r\n\r\n")
        begun = await caller._reader.readuntil(b"The good")
        gate.set()
        (attempt,) = ours.fake.attempts
        assert begun + await caller._reader.read() == GOOD.stream(attempt.generation_id)


async def test_nothing_leaves_before_the_first_delta(guarded: Guard) -> None:
    """Comments and empty deltas alone commit nothing: what fails then is retried invisibly."""
    empty = EVENTS[1].replace(b"The good", b"")
    assert empty != EVENTS[1]
    async with guarded([[head(), PROCESSING, empty, reset], GOOD]) as ours:
        caller = await ask_live(ours, WITH_USAGE)
        first, second = ours.fake.attempts
        assert first.generation_id.encode() not in caller.body
        assert caller.headers["x-generation-id"] == second.generation_id
        assert caller.body == b": loopguard attempts=2\n\n" + GOOD.stream(second.generation_id)
        assert caller.headers["x-loopguard-attempts"] == "2"


async def test_early_trip_is_retried_invisibly(guarded: Guard) -> None:
    """A trip before anything left is retried, and the caller gets the good reply alone."""
    async with guarded([loop(delta_chars=20_000), GOOD]) as ours:
        caller = await ask_live(ours, WITH_USAGE)
        second = ours.fake.attempts[1]
        figures = b"attempts=2 loop-aborts=1 loop-abort-words=960 loop-abort-chars=3840"
        assert caller.body == b": loopguard %b\n\n%b" % (
            figures,
            GOOD.stream(second.generation_id),
        )
        assert caller.headers["x-loopguard-loop-aborts"] == "1"
        assert caller.headers["x-loopguard-loop-abort-words"] == "960"
        assert caller.headers["x-loopguard-loop-abort-chars"] == "3840"


LEAD_IN = "An answer that begins well. "


async def test_late_trip_is_an_error_event(guarded: Guard) -> None:
    """A trip after something left ends the stream with the loop's own error and nothing after."""
    async with guarded([loop(lead_in=LEAD_IN), GOOD]) as ours:
        caller = await ask_live(ours)
        (attempt,) = ours.fake.attempts
        assert caller.status == 200
        assert (caller.error["code"], caller.error["type"]) == (400, "model_response_loop")
        assert DONE not in caller.body
        last = chunks_of(caller.body)[-1]
        assert last["id"] == attempt.generation_id
        assert "choices" not in last
        assert [record.outcome for record in ours.records] == ["looped"]


async def test_late_trip_raises(guarded: Guard) -> None:
    """The openai client raises the loop's own error after what had left."""
    read = []

    async def read_on(guarded: Guarded) -> None:
        async with guarded.client() as client:
            stream = await client.chat.completions.create(**STREAM, extra_headers=LIVE[1])
            async for chunk in stream:
                read.append(chunk.choices[0].delta.content)

    async with guarded([loop(lead_in=LEAD_IN)]) as ours:
        with pytest.raises(openai.APIError) as caught:
            await read_on(ours)
        assert caught.value.type == "model_response_loop"
        assert "".join(read).startswith(LEAD_IN)
        assert len(ours.fake.attempts) == 1


async def test_suspicion_holds_back(guarded: Guard) -> None:
    """Of a loop only what came before the first suspicion leaves."""
    async with guarded([loop(lead_in=LEAD_IN)]) as ours:
        text = text_of((await ask_live(ours)).body)
        assert text.startswith(LEAD_IN)
        # The stretch rule suspects after some thousand characters, and judges every 256.
        assert len(text) <= len(LEAD_IN) + 1024 + 256
        assert ours.records[0].attempts[0].chars >= TRIP_CHARS


async def test_suspicion_that_passes_sends_what_was_held(guarded: Guard) -> None:
    """A reply that stops repeating itself arrives whole, byte for byte."""
    other = " ".join(f"word{number}" for number in range(400))
    reply = Reply("yes no " * 500 + other, delta_chars=50)
    async with guarded([reply]) as ours:
        caller = await ask_live(ours, WITH_USAGE)
        assert caller.body == reply.stream(ours.fake.attempts[0].generation_id)


async def test_what_is_suspected_is_held(guarded: Guard) -> None:
    """While the reply is suspected nothing leaves, though the upstream writes on."""
    gate = asyncio.Event()
    events = list(Reply("yes no " * 500 + "and done.", delta_chars=50).events())
    async with guarded([[head(), *events[:60], wait(gate), *events[60:]]]) as ours:
        async with calling(ours, *LIVE) as caller:
            await caller.until(b"yes no")
            (exchange,) = ours.api._routes.exchanges
            await turning_until(lambda: exchange.held_bytes > 8_000)
            assert len(caller.body) < 10_000
            gate.set()
            body = await caller.whole()
        assert text_of(body).endswith("and done.")


async def test_finish_instead_of_an_error(guarded: Guard) -> None:
    """Where the profile says so a late trip ends the stream as a reply that reached its cap."""
    async with guarded([loop(lead_in=LEAD_IN)], profiles__default__live_trip="finish") as ours:
        caller = await ask_live(ours)
        assert caller.body.endswith(DONE)
        last = chunks_of(caller.body)[-1]
        assert last["choices"][0]["finish_reason"] == "length"
        assert last["id"] == ours.fake.attempts[0].generation_id
        assert b"error" not in caller.body
        assert ours.records[0].outcome == "looped"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_every_unfinished_choice_is_finished(guarded: Guard, path: str) -> None:
    """Of several choices each that is unfinished for its caller is finished, and no other one.

    The first has ended; the end of the third waits behind the loop and is thrown away with it.
    """

    def chunk(index: int, text: str = "", finish: str | None = None) -> bytes:
        said = {"text": text} if path == "/v1/completions" else {"delta": {"content": text}}
        choice = {"index": index, **said, "finish_reason": finish}
        return event({"id": GENERATION_ID, "choices": [choice]})

    begun = [chunk(index, LEAD_IN) for index in range(4)] + [chunk(0, finish="stop")]
    looping = [chunk(1, "void 0; " * 400), chunk(2, finish="stop"), chunk(1, "void 0; " * 400)]
    steps = [head(), *begun, *looping, stall]
    async with guarded([steps], profiles__default__live_trip="finish") as ours:
        caller = await ask(ours, STREAM | {"prompt": "x"}, LIVE[1], path=path)
        choices = [choice for chunk in chunks_of(caller.body) for choice in chunk["choices"]]
        finished = [
            (choice["index"], choice["finish_reason"])
            for choice in choices
            if choice["finish_reason"]
        ]
        assert finished == [(0, "stop"), (1, "length"), (2, "length"), (3, "length")]
        assert caller.body.endswith(DONE)


async def test_finish_is_for_what_has_left(guarded: Guard) -> None:
    """Where nothing had left a loop in every attempt is an error, whatever the profile says."""
    async with guarded([loop(delta_chars=20_000)], profiles__default__live_trip="finish") as ours:
        caller = await ask_live(ours)
        assert caller.error["type"] == "model_response_loop"
        assert len(ours.fake.attempts) == 4


@pytest.mark.parametrize("death", [close, reset], ids=["closed", "reset"])
async def test_dead_upstream_is_an_error_event(guarded: Guard, death: Any) -> None:
    """An upstream that dies in mid-stream is an error event after whole events, no clean end."""
    torn = [head(), *EVENTS[:2], EVENTS[2][:40], death]
    async with guarded([torn, GOOD]) as ours:
        caller = await ask_live(ours)
        assert len(ours.fake.attempts) == 1
        assert (caller.error["code"], caller.error["type"]) == (502, "upstream_unusable")
        assert DONE not in caller.body
        assert text_of(caller.body) == "The good"
        for phrase in (b"connection lost", b"network error", b"peer closed"):
            assert phrase not in caller.body


async def test_clean_end_without_a_finish_is_an_error_event(guarded: Guard) -> None:
    """A body that ends properly in the middle of the reply is an error all the same."""
    async with guarded([[head(), *EVENTS[:2]]]) as ours:
        caller = await ask_live(ours)
        assert caller.error["code"] == 502
        assert DONE not in caller.body


@pytest.mark.parametrize("mode", ["live", "held"])
async def test_done_only_if_it_came(guarded: Guard, mode: str) -> None:
    """A reply that finished without the sentinel is passed on without the sentinel."""
    async with guarded([[head(), *EVENTS[:-1]]]) as ours:
        caller = await ask(ours, *asked(mode))
        assert text_of(caller.body) == "The good answer."
        assert DONE not in caller.body
        assert b"error" not in caller.body


async def test_nothing_is_read_after_done(guarded: Guard) -> None:
    """The sentinel ends the exchange, though the upstream stays and says more."""
    async with guarded([[head(), *EVENTS, EVENTS[1], stall]]) as ours:
        caller = await ask_live(ours)
        assert caller.body.endswith(DONE)
        assert caller.body.count(DONE) == 1
        await ours.fake.attempts[0].left()


@pytest.mark.parametrize("mode", ["live", "held"])
@pytest.mark.parametrize("shape", ["bare", "no_choices", "repeated"])
@pytest.mark.parametrize("asked_usage", [True, False])
async def test_usage(guarded: Guard, shape: UsageShape, mode: str, asked_usage: bool) -> None:  # noqa: FBT001
    """A chunk of nothing but usage reaches those who asked for it; usage on a choice, everyone."""
    body, headers = asked(mode)
    async with guarded([Reply("The good answer.", usage_shape=shape)]) as ours:
        caller = await ask(ours, WITH_USAGE if asked_usage else body, headers)
        chunks = chunks_of(caller.body)
        assert bool(chunks[-1].get("usage")) == (asked_usage or shape != "no_choices")
        assert all(chunk["choices"] for chunk in chunks) == (
            not asked_usage or shape != "no_choices"
        )
        assert caller.body.endswith(DONE)
        assert ours.records[0].usage is not None
        assert ours.records[0].usage.cost_usd == 0.008262
