"""What has looped is not asked for again for a while, whoever insists."""

from typing import Any

import pytest

from tests.end_to_end.conftest import Guard, Guarded
from tests.end_to_end.raw_caller import REQUEST, STREAM, RawCaller, ask, metrics
from tests.fake_openrouter import Reply, loop

GOOD = Reply("The good answer.")


class Clock:
    """Stands still until it is moved."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def stop_clock(guarded: Guarded) -> Clock:
    clock = Clock()
    guarded.api._routes.service.shared.loop_memory._clock = clock
    return clock


def is_loop(caller: RawCaller) -> bool:
    return bool(caller.error["type"] == "model_response_loop")


async def test_retry_after_tells_what_is_left(guarded: Guard) -> None:
    """A remembered request is refused with the seconds that are left, then asked for again."""
    async with guarded([loop()]) as ours:
        clock = stop_clock(ours)
        first = await ask(ours)
        assert is_loop(first)
        assert "retry-after" not in first.headers
        for gone_s, left in [(0.0, "30"), (10.5, "20"), (29.9, "1")]:
            clock.now = 1000.0 + gone_s
            again = await ask(ours)
            assert (again.status, again.headers["retry-after"]) == (502, left)
            assert again.headers["x-should-retry"] == "false"
            assert again.error == first.error
            assert again.headers["x-loopguard-attempts"] == "0"
        assert len(ours.fake.attempts) == 4
        clock.now = 1030.0
        ours.fake.script = [GOOD]
        assert (await ask(ours)).status == 200
        series = await metrics(ours.admin)
        assert series["loopguard_loop_memory_refusals_total"] == 3
        assert series["loopguard_exchanges_total{remembered}"] == 3


@pytest.mark.parametrize(("first", "second"), [(REQUEST, STREAM), (STREAM, REQUEST)])
async def test_streamed_and_whole_are_the_same_request(
    guarded: Guard, first: dict[str, Any], second: dict[str, Any]
) -> None:
    """A caller who asks again in the other form is known, and told in the form that it asked in."""
    async with guarded([loop()]) as ours:
        assert is_loop(await ask(ours, first))
        again = await ask(ours, second, {"X-Title": "other", "X-Loopguard-Relay": "live"})
        assert is_loop(again)
        assert again.status == (200 if second is STREAM else 502)
        assert again.headers["retry-after"] == "30"
        assert len(ours.fake.attempts) == 4


@pytest.mark.parametrize(
    ("request_body", "headers"),
    [
        (REQUEST, {"Authorization": "Bearer sk-other"}),
        (REQUEST, {}),
        (REQUEST | {"temperature": 1}, {"Authorization": "Bearer sk-one"}),
        (REQUEST | {"model": "m/y"}, {"Authorization": "Bearer sk-one"}),
    ],
)
async def test_other_requests_are_not_known(
    guarded: Guard, request_body: dict[str, Any], headers: dict[str, str]
) -> None:
    """Another key, another parameter or another model is another request."""
    async with guarded([loop()]) as ours:
        await ask(ours, REQUEST, {"Authorization": "Bearer sk-one"})
        ours.fake.script = [GOOD]
        assert (await ask(ours, request_body, headers)).status == 200
        assert is_loop(await ask(ours, REQUEST, {"Authorization": "Bearer sk-one"}))


async def test_none(guarded: Guard) -> None:
    """With a time of 0 nothing is remembered: asking again costs again."""
    async with guarded([loop()], loop_memory__ttl_s="0") as ours:
        for exchanges in (1, 2):
            assert is_loop(await ask(ours))
            assert len(ours.fake.attempts) == 4 * exchanges


async def test_what_completed_is_not_remembered(guarded: Guard) -> None:
    """A request that completed after loops may be asked again."""
    async with guarded([loop(), loop(), loop(), GOOD, GOOD]) as ours:
        for _ in range(2):
            assert (await ask(ours)).status == 200
        assert len(ours.fake.attempts) == 5
