"""The caller leaves: the upstream's socket is the witness that the reply is no longer paid for."""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from loopguard.proxy.exchange import Exchange
from tests.end_to_end.conftest import Guard, Guarded
from tests.end_to_end.raw_caller import RawCaller, asked, calling, metrics, turning_until
from tests.fake_openrouter import Refusal, Reply, head, loop, stall, unreachable
from tests.fake_openrouter.server import Answer

ROUNDS = 20
REQUIRED_S = 0.1
"""Issue 2: the median time from the caller's close to the upstream's."""

MODES = ("held", "whole", "live")

EVENTS = list(Reply("some words of an answer that goes on for a while").events())
# Suspected of looping, and some words before the trip.
SUSPECT_CHARS = 3_000
SUSPECT = list(loop(chars=SUSPECT_CHARS).events())[:-3]


@dataclass(frozen=True)
class Phase:
    """Where an exchange stands when its caller leaves.

    Attributes:
        answer: what the upstream does.
        reached: whether the exchange has come so far.
        seen: what the caller reads before it leaves.
        environment: settings that make the phase last.
    """

    answer: Answer
    reached: Callable[[Exchange], bool]
    seen: dict[str, bytes] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)


def head_read(exchange: Exchange) -> bool:
    return exchange._attempt is not None and exchange._attempt.origin is not None


def text_read(chars: int) -> Callable[[Exchange], bool]:
    def reached(exchange: Exchange) -> bool:
        return exchange._attempt is not None and exchange._attempt.detector.chars == chars

    return reached


COMMENT = b": loopguard keep-alive\n\n"

PHASES = {
    "before the head": Phase([stall], lambda _: True),
    "silent after the head": Phase([head(), stall], head_read),
    "in mid-stream": Phase([head(), *EVENTS[:4], stall], text_read(24), {"live": b" answer "}),
    "holding": Phase(
        [head(), *SUSPECT, stall],
        text_read(SUSPECT_CHARS),
        {"held": COMMENT, "live": COMMENT},
        {"server__keepalive_s": "0.01"},
    ),
}


def only_exchange(guarded: Guarded) -> Exchange:
    (exchange,) = guarded.api._routes.exchanges
    return exchange


async def assert_nothing_is_left(guarded: Guarded, departures: int) -> None:
    series = await metrics(guarded.admin)
    assert series["loopguard_exchanges_total{departed}"] == departures
    assert series["loopguard_exchanges_total"] == departures
    assert series["loopguard_exchanges_in_flight"] == 0
    assert series["loopguard_open_upstreams"] == 0
    assert series["loopguard_held_bytes"] == 0


def judge(phase: str, mode: str, delays_s: list[float]) -> None:
    median_s = statistics.median(delays_s)
    worst = f"{max(delays_s) * 1000:.1f} ms at the worst"
    print(f"left {phase}, {mode}: closed after {median_s * 1000:.1f} ms, {worst}")
    assert len(delays_s) == ROUNDS
    assert median_s <= REQUIRED_S


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PHASES)
async def test_upstream_is_closed_at_once(guarded: Guard, name: str, mode: str) -> None:
    """In every phase a caller's leaving closes the upstream, and no attempt follows."""
    phase = PHASES[name]
    body, headers = asked(mode)
    delays_s = []
    async with guarded([phase.answer], **phase.environment) as ours:
        for number in range(1, ROUNDS + 1):
            async with calling(ours, body, headers) as caller:
                attempt = await ours.fake.attempt(number)
                await turning_until(lambda: phase.reached(only_exchange(ours)))
                if mode in phase.seen:
                    await caller.until(phase.seen[mode])
                assert attempt.connection.open
                caller.leave()
                delays_s.append(await attempt.left() - caller.left_at)
            await turning_until(lambda: len(ours.records) == number)  # noqa: B023
            record = ours.records[-1]
            assert (record.outcome, len(record.attempts)) == ("departed", 1)
            assert record.attempts[0].outcome == "departed"
        assert len(ours.fake.attempts) == ROUNDS
        await assert_nothing_is_left(ours, ROUNDS)
    judge(name, mode, delays_s)


@pytest.mark.parametrize("mode", MODES)
async def test_waiting_ends_at_once(guarded: Guard, mode: str) -> None:
    """A caller who leaves between two attempts ends the exchange, and no attempt follows."""
    body, headers = asked(mode)
    delays_s = []
    async with guarded([Refusal(503, retry_after=30)]) as ours:
        for number in range(1, ROUNDS + 1):
            async with calling(ours, body, headers) as caller:
                await ours.fake.attempt(number)
                await turning_until(lambda: len(only_exchange(ours)._outcomes) == 1)
                caller.leave()
                await turning_until(lambda: len(ours.records) == number)  # noqa: B023
                delays_s.append(time.monotonic() - caller.left_at)
            record = ours.records[-1]
            assert record.outcome == "departed"
            assert [attempt.outcome for attempt in record.attempts] == ["refused"]
        assert len(ours.fake.attempts) == ROUNDS
        await assert_nothing_is_left(ours, ROUNDS)
    judge("while waiting", mode, delays_s)


@asynccontextmanager
async def silent_tls() -> AsyncIterator[tuple[str, asyncio.Queue[asyncio.StreamReader]]]:
    """A host that takes a connection and never answers the TLS hello that comes on it."""
    greeted: asyncio.Queue[asyncio.StreamReader] = asyncio.Queue()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        greeted.put_nowait(reader)
        await reader.read()
        writer.close()

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/api/v1", greeted


@pytest.mark.parametrize("mode", MODES)
async def test_connecting_is_given_up_at_once(guarded: Guard, mode: str) -> None:
    """A caller who leaves while loopguard connects ends the connecting: the TLS peer sees it."""
    body, headers = asked(mode)
    delays_s = []
    async with (
        silent_tls() as (base_url, greeted),
        guarded([], upstream__base_url=base_url) as ours,
    ):
        for number in range(1, ROUNDS + 1):
            async with calling(ours, body, headers) as caller:
                peer = await greeted.get()
                caller.leave()
                await turning_until(peer.at_eof)
                delays_s.append(time.monotonic() - caller.left_at)
            await turning_until(lambda: len(ours.records) == number)  # noqa: B023
            assert ours.records[-1].attempts[0].outcome == "departed"
        assert greeted.empty()
        await assert_nothing_is_left(ours, ROUNDS)
    judge("while connecting", mode, delays_s)


@pytest.mark.parametrize("mode", MODES)
async def test_unreachable_host_is_given_up(guarded: Guard, mode: str) -> None:
    """A caller who leaves while TCP has not connected yet leaves no upstream behind."""
    body, headers = asked(mode)
    with unreachable() as base_url:
        async with guarded([], upstream__base_url=base_url) as ours:
            async with calling(ours, body, headers) as caller:
                await turning_until(lambda: len(ours.api._routes.exchanges) == 1)
                caller.leave()
                await turning_until(lambda: len(ours.records) == 1)
            assert ours.records[0].attempts[0].outcome == "departed"
            await assert_nothing_is_left(ours, 1)


async def test_pass_through_is_closed_at_once(guarded: Guard) -> None:
    """A caller's leaving closes a request that is passed through, too."""
    delays_s = []
    async with guarded([]) as ours:
        for number in range(ROUNDS):
            async with calling(ours, b"first", {"Content-Length": "9"}, path="/v1/echo") as caller:
                await caller.until(b"first")
                caller.leave()
                delays_s.append(await ours.fake.requests[number].left() - caller.left_at)
        series = await metrics(ours.admin)
        assert series["loopguard_open_upstreams"] == 0
    judge("in mid-stream", "passed through", delays_s)


async def test_caller_who_stays_is_not_taken_for_gone(guarded: Guard) -> None:
    """The same upstream, with a caller who stays, is read to its end: no phase ends by itself."""
    gate = asyncio.Event()

    async def wait(_: object) -> None:
        await gate.wait()

    async with guarded([[head(), *EVENTS[:4], wait, *EVENTS[4:]]]) as ours:
        async with calling(ours) as caller:
            await turning_until(lambda: bool(ours.api._routes.exchanges))
            await turning_until(lambda: text_read(24)(only_exchange(ours)))
            gate.set()
            assert await caller.head() == 200
            assert b"that goes on for a while" in await caller.whole()
        assert isinstance(caller, RawCaller)
        assert ours.records[0].outcome == "completed"
