"""The time limits, each by itself, and the bounds of memory."""

import asyncio
import json
import socket
from itertools import count

import pytest

from loopguard.proxy import exchange
from tests.end_to_end.conftest import Guard, Guarded
from tests.end_to_end.raw_caller import (
    REQUEST,
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
    PROCESSING,
    Line,
    Message,
    Refusal,
    Reply,
    Step,
    event,
    head,
    stall,
    unreachable,
)

GOOD = Reply("The good answer.")
EVENTS = list(GOOD.events())
IDLE = {"profiles__default__stream_idle_s": "0.1"}
MODES = ("held", "whole", "live")


def outcomes(guarded: Guarded) -> list[str]:
    (record,) = guarded.records
    return [attempt.outcome for attempt in record.attempts]


def assert_stalled_first(guarded: Guarded) -> None:
    """The first attempt stalled and the last one completed; a busy machine may stall between."""
    first, *between, last = outcomes(guarded)
    assert (first, last) == ("stalled", "completed")
    assert set(between) <= {"stalled"}


def every_millisecond(data: bytes) -> Step:
    """Bytes without end."""

    async def play(line: Line) -> None:
        for _ in count():
            await line.body(data)
            await asyncio.sleep(0.001)

    return play


EMPTY = event({"id": "x", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
USAGE = event({"id": "x", "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})

SILENCES: dict[str, list[Step]] = {
    "nothing": [stall],
    "comments": [every_millisecond(PROCESSING)],
    "blank lines": [every_millisecond(b"\n\n")],
    "empty deltas": [every_millisecond(EMPTY)],
    "usage": [every_millisecond(USAGE)],
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SILENCES)
async def test_first_delta(guarded: Guard, name: str, mode: str) -> None:
    """An attempt without a delta in its time is stalled, whatever else comes, and asked again."""
    body, headers = asked(mode)
    script = [[head(), *SILENCES[name]], GOOD]
    async with guarded(script, upstream__first_delta_timeout_s="0.1") as ours:
        caller = await ask(ours, body, headers)
        assert_stalled_first(ours)
        assert b"answer" in caller.body
        assert caller.body.count(PROCESSING) <= 1


@pytest.mark.parametrize("mode", MODES)
async def test_no_head(guarded: Guard, mode: str) -> None:
    """An upstream that does not even send its head in the first delta's time is stalled."""
    body, headers = asked(mode)
    async with guarded([[stall], GOOD], upstream__first_delta_timeout_s="0.1") as ours:
        assert (await ask(ours, body, headers)).status == 200
        assert_stalled_first(ours)


@pytest.mark.parametrize("mode", ["held", "whole"])
@pytest.mark.parametrize("name", SILENCES)
async def test_idle(guarded: Guard, name: str, mode: str) -> None:
    """A reply that falls silent is stalled, whatever else comes, thrown away and asked again."""
    body, headers = asked(mode)
    async with guarded([[head(), *EVENTS[:2], *SILENCES[name]], GOOD], **IDLE) as ours:
        caller = await ask(ours, body, headers)
        assert_stalled_first(ours)
        assert caller.body.count(b"The good") == 1


async def test_idle_live(guarded: Guard) -> None:
    """A live reply that falls silent after its first delta ends with an error event."""
    async with guarded([[head(), *EVENTS[:3], *SILENCES["comments"]], GOOD], **IDLE) as ours:
        caller = await ask(ours, *asked("live"))
        assert outcomes(ours) == ["stalled"]
        assert (caller.error["code"], caller.error["type"]) == (504, "upstream_timeout")
        assert DONE not in caller.body


@pytest.mark.parametrize("mode", MODES)
async def test_always_stalled(guarded: Guard, mode: str) -> None:
    """An upstream that always falls silent is a 504 after the last attempt."""
    body, headers = asked(mode)
    async with guarded([[head(), stall]], upstream__first_delta_timeout_s="0.05") as ours:
        caller = await ask(ours, body, headers)
        assert (caller.status, caller.error["type"]) == (504, "upstream_timeout")
        assert caller.headers["x-should-retry"] == "false"
        assert caller.headers["x-loopguard-attempts"] == "4"
        assert outcomes(ours) == ["stalled"] * 4


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("end", [[stall], []], ids=["stalls", "ends"])
async def test_finish_without_its_end(guarded: Guard, mode: str, end: list[Step]) -> None:
    """A reply whose finish has come is complete, though usage and sentinel never come."""
    body, headers = asked(mode)
    finish = next(number for number, data in enumerate(EVENTS) if b'"finish_reason":"stop"' in data)
    begun = b"".join(EVENTS[: finish + 1])  # at once: between two events a machine may rest
    async with guarded([[head(), begun, *end]], **IDLE) as ours:
        caller = await ask(ours, body, headers)
        assert outcomes(ours) == ["completed"]
        assert b"error" not in caller.body
        assert b'"finish_reason":"stop"' in caller.body
        assert DONE not in caller.body


def writes_on() -> list[Step]:
    """A reply that goes on and on with ever new words."""

    async def play(line: Line) -> None:
        for number in count():
            text = f"word{number} "
            await line.body(event({"choices": [{"index": 0, "delta": {"content": text}}]}))
            await asyncio.sleep(0.001)

    return [head(), play]


@pytest.mark.parametrize("mode", MODES)
async def test_attempt(guarded: Guard, mode: str) -> None:
    """An attempt that writes on beyond its time is not made again: the next would be as dear."""
    body, headers = asked(mode)
    async with guarded([writes_on()], profiles__default__call_timeout_s="0.6") as ours:
        caller = await ask(ours, body, headers)
        assert outcomes(ours) == ["timed_out"]
        assert (caller.error["code"], caller.error["type"]) == (504, "upstream_timeout")
        assert "the attempt exceeded its time limit of 0.6 s" in caller.error["message"]
        assert caller.status == (200 if mode == "live" else 504)


@pytest.mark.parametrize("mode", MODES)
async def test_exchange(guarded: Guard, mode: str) -> None:
    """All attempts together have one time, which cuts the last of them short."""
    body, headers = asked(mode)
    script = [Refusal(503), [stall]]
    async with guarded(script, retry__exchange_timeout_s="0.9") as ours:
        caller = await ask(ours, body, headers)
        assert outcomes(ours) == ["refused", "timed_out"]
        assert caller.status == 504
        assert "the exchange exceeded its time limit of 0.9 s" in caller.error["message"]


async def test_wait_that_would_outlast_the_exchange(guarded: Guard) -> None:
    """A wait that ends after the exchange's time is not begun: the refusal is passed on at once."""
    script = [Refusal(503, retry_after=30)]
    async with guarded(script, retry__exchange_timeout_s="20") as ours:
        caller = await ask(ours)
        assert (caller.status, caller.headers["retry-after"]) == (503, "30")
        assert outcomes(ours) == ["refused"]


async def test_connect(guarded: Guard) -> None:
    """A host that does not take the connection in its time is given up, four times."""
    with unreachable() as base_url:
        async with guarded(
            [], upstream__base_url=base_url, upstream__connect_timeout_s="0.05"
        ) as ours:
            caller = await ask(ours)
            assert (caller.status, caller.error["type"]) == (502, "upstream_unusable")
            assert outcomes(ours) == ["broken"] * 4


async def test_connect_holds_for_the_name_too(
    guarded: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that is not resolved in the connection's time is given up as well."""

    async def resolve(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    environment = {
        "upstream__base_url": "http://slow.invalid/api/v1",
        "upstream__connect_timeout_s": "0.05",
    }
    async with guarded([], **environment) as ours:
        monkeypatch.setattr(ours.api._upstream._session.connector, "_resolve_host", resolve)
        caller = await ask(ours)
        assert (caller.status, caller.error["type"]) == (502, "upstream_unusable")
        assert outcomes(ours) == ["broken"] * 4


# 15 MB: more than the buffers of all sockets on the way take.
LONG = Reply(Message("".join(f"word{number} " for number in range(1_400_000))), delta_chars=50_000)


async def pause_until_blocked(guarded: Guarded, caller: RawCaller) -> None:
    """Stop reading, and wait until loopguard cannot write on."""
    receiver = caller._writer.get_extra_info("socket")
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    caller._writer.transport.pause_reading()
    (exchange,) = guarded.api._routes.exchanges

    def blocked() -> bool:
        writer = exchange._caller._request.transport
        return writer is not None and writer.get_write_buffer_size() > 1 << 16

    await turning_until(blocked)


async def test_slow_caller_is_not_the_upstreams_stall(guarded: Guard) -> None:
    """A caller who does not read for longer than the idle time gets the rest when it reads on."""
    environment = {
        "profiles__default__stream_idle_s": "1",
        "profiles__default__loop_detection__enabled": "false",
        "profiles__default__stretch_detection__enabled": "false",
    }
    async with guarded([LONG], **environment) as ours, calling(ours, *asked("live")) as caller:
        await caller.until(b"word0 ")
        await pause_until_blocked(ours, caller)
        (attempt,) = ours.fake.attempts
        await asyncio.sleep(1.5)  # that more than the idle time passes is the point
        # Backpressure: what the caller does not take is not taken from the upstream either.
        assert attempt.written_bytes < 12_000_000
        caller._writer.transport.resume_reading()
        body = await caller.whole()
        assert body.endswith(DONE)
        assert b"word1399999 " in body
        assert outcomes(ours) == ["completed"]


@pytest.mark.parametrize("mode", ["held", "live"])
async def test_caller_who_never_reads_is_given_up(
    guarded: Guard, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """A caller who takes nothing of its reply keeps the exchange no longer than its time."""
    monkeypatch.setattr(exchange, "_DELIVERY_S", 0.2)
    environment = {
        "retry__exchange_timeout_s": "0.6",
        "profiles__default__loop_detection__enabled": "false",
        "profiles__default__stretch_detection__enabled": "false",
    }
    async with guarded([LONG], **environment) as ours, calling(ours, *asked(mode)) as caller:
        caller._writer.transport.pause_reading()
        await turning_until(lambda: bool(ours.records))
        assert ours.records[0].outcome in {"departed", "timed_out"}
        assert not ours.api._routes.exchanges


async def test_whole_reply_that_nobody_takes_is_given_up(
    guarded: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole reply that its caller does not take ends as one whose caller has left."""
    monkeypatch.setattr(exchange, "_DELIVERY_S", 0.0)
    environment = {
        "retry__exchange_timeout_s": "3",
        "profiles__default__loop_detection__enabled": "false",
        "profiles__default__stretch_detection__enabled": "false",
    }
    whole = Reply("word " * 1_000_000, delta_chars=64_000)
    async with guarded([whole], **environment) as ours, calling(ours) as caller:
        caller._writer.transport.pause_reading()
        await turning_until(lambda: bool(ours.records))
        (record,) = ours.records
        assert (record.outcome, outcomes(ours)) == ("departed", ["completed"])
        caller._writer.transport.resume_reading()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await caller.whole()


@pytest.mark.parametrize("mode", ["held", "whole"])
async def test_held_reply_is_bounded(guarded: Guard, mode: str) -> None:
    """A reply that is larger than may be held is given up, and not asked for again."""
    body, headers = asked(mode)
    async with guarded([Reply("x " * 5000)], server__max_held_bytes="4096") as ours:
        caller = await ask(ours, body, headers)
        assert (caller.status, caller.error["type"]) == (502, "upstream_unusable")
        assert "max_held_bytes" in caller.error["message"]
        assert outcomes(ours) == ["broken"]


async def test_what_live_holds_back_is_bounded(guarded: Guard) -> None:
    """Comments that no delta follows leave once they are more than may be held."""
    script = [[head(), every_millisecond(PROCESSING)]]
    async with (
        guarded(script, server__max_held_bytes="256") as ours,
        calling(ours, *asked("live")) as caller,
    ):
        await caller.until(PROCESSING * 10)
        (exchange,) = ours.api._routes.exchanges
        assert exchange.held_bytes <= 256 + len(PROCESSING)


async def test_bad_stream_disturbs_no_other(guarded: Guard) -> None:
    """Exchanges of one process do not wait for one that is stalled."""
    async with guarded([[head(), stall], GOOD]) as ours:
        async with calling(ours, STREAM):
            await ours.fake.attempt(1)
            for _ in range(3):
                reply = json.loads((await ask(ours, REQUEST)).body)
                assert reply["choices"][0]["message"]["content"] == "The good answer."
        async with connected(ours.loopguard.api_port) as caller:
            await caller.send(REQUEST)
            assert await caller.head() == 200
