"""The clocks, on an event loop whose time the test moves."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from loopguard.core.retry import Drained, Stalled, TimedOut
from loopguard.proxy.clocks import Clocks

EXCHANGE_S = 1000.0


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting for the next timer, moves the time to it."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        events = super().select(0)
        if not events and timeout:
            self.now += timeout
        return events


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run on a loop that waits for nothing."""
    selector = _JumpingSelector()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(test())


def clocks(**limits: float) -> Clocks:
    return Clocks(asyncio.get_running_loop().time() + EXCHANGE_S, EXCHANGE_S, **limits)


def now() -> float:
    return asyncio.get_running_loop().time()


async def silence() -> None:
    await asyncio.Event().wait()


async def expire(watched: Clocks, body: Callable[[], Coroutine[Any, Any, None]] = silence) -> float:
    """Run the body until a limit ends it; say when that was."""

    async def watched_body() -> None:
        async with watched:
            await body()

    with pytest.raises(TimeoutError):
        await watched_body()
    return now()


@pytest.mark.parametrize(
    ("limits", "ends_at", "outcome"),
    [
        ({}, 1000.0, TimedOut("exchange", EXCHANGE_S)),
        ({"call_timeout_s": 600.0}, 600.0, TimedOut("attempt", 600.0)),
        ({"call_timeout_s": 600.0, "first_delta_timeout_s": 300.0}, 300.0, Stalled(300.0)),
        (
            {"call_timeout_s": 200.0, "first_delta_timeout_s": 300.0},
            200.0,
            TimedOut("attempt", 200.0),
        ),
        ({"stream_idle_s": 5.0}, 1000.0, TimedOut("exchange", EXCHANGE_S)),
    ],
)
def test_first_limit_that_is_due_ends_the_body(
    limits: dict[str, float], ends_at: float, outcome: object
) -> None:
    """Of all limits the one that is due first ends the body, exactly when it is due."""

    async def test() -> None:
        watched = clocks(**limits)
        assert await expire(watched) == pytest.approx(ends_at)
        assert watched.expired == outcome

    run(test)


def test_progress_exchanges_the_first_limit_for_the_idle_one() -> None:
    """From the first delta on, the silence between two deltas is what counts."""

    async def test() -> None:
        watched = clocks(first_delta_timeout_s=300.0, stream_idle_s=20.0)

        async def body() -> None:
            for _ in range(3):
                await asyncio.sleep(19)
                watched.progress()
            await silence()

        assert await expire(watched, body) == pytest.approx(77.0)
        assert watched.expired == Stalled(20.0)

    run(test)


def test_pause_is_no_silence() -> None:
    """The time that a slow caller takes counts neither while it lasts nor afterwards."""

    async def test() -> None:
        watched = clocks(first_delta_timeout_s=20.0, stream_idle_s=20.0)

        async def body() -> None:
            watched.progress()
            await asyncio.sleep(5)
            watched.pause()
            await asyncio.sleep(200)
            watched.resume()
            await silence()

        assert await expire(watched, body) == pytest.approx(220.0)
        assert watched.expired == Stalled(20.0)

    run(test)


def test_pause_does_not_stop_the_other_limits() -> None:
    """A caller that never reads on ends with the attempt's time."""

    async def test() -> None:
        watched = clocks(call_timeout_s=50.0, first_delta_timeout_s=20.0)
        watched.pause()
        assert await expire(watched) == pytest.approx(50.0)
        assert watched.expired == TimedOut("attempt", 50.0)

    run(test)


def test_drain_ends_the_body_now() -> None:
    """A drain ends the body at once, whatever the limits are."""

    async def test() -> None:
        watched = clocks()
        asyncio.get_running_loop().call_later(3, watched.drain)
        assert await expire(watched) == pytest.approx(3.0)
        assert watched.expired == Drained()

    run(test)


def test_drain_before_the_body_ends_it_at_its_first_wait() -> None:
    """A drain that came before the body ends it as soon as it waits."""

    async def test() -> None:
        watched = clocks()
        watched.drain()
        assert await expire(watched) == 0.0
        assert watched.expired == Drained()

    run(test)


def test_drain_after_the_body_does_nothing() -> None:
    """A drain that comes after the body has ended disturbs nobody."""

    async def test() -> None:
        watched = clocks()
        async with watched:
            pass
        watched.drain()
        await asyncio.sleep(EXCHANGE_S * 2)

    run(test)


def test_first_ending_stands() -> None:
    """A drain that follows a stall does not change what ended the body."""

    async def test() -> None:
        watched = clocks(first_delta_timeout_s=1.0)

        async def body() -> None:
            try:
                await silence()
            finally:
                watched.drain()

        await expire(watched, body)
        assert watched.expired == Stalled(1.0)

    run(test)


def test_others_cancelling_is_no_timeout() -> None:
    """A body that is cancelled from outside is cancelled, and no timer is left behind."""

    async def test() -> None:
        watched = clocks(call_timeout_s=5.0)

        async def body() -> None:
            async with watched:
                await asyncio.Event().wait()

        task = asyncio.ensure_future(body())
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(EXCHANGE_S)
        assert watched.expired is None

    run(test)
