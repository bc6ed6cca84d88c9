"""What an operator sees of an exchange while it runs."""

import asyncio
from collections.abc import Callable

import pytest

from loopguard.billing.ledger import LONGEST_NAME_CHARS
from loopguard.proxy.sight import Sight
from tests.end_to_end.conftest import Guard, Guarded
from tests.end_to_end.raw_caller import PATIENCE_S, REQUEST
from tests.fake_openrouter import Reply, head, loop, stall, wait

PROSE = "It was a day like others, and nobody had thought of rain. "


async def seen(ours: Guarded, found: Callable[[Sight], bool]) -> Sight:
    """The sight of the only exchange, once it is as expected."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            sights = ours.api._routes.sights()
            assert sights.in_flight == len(sights.shown)
            assert sights.suspected == sum(each.state == "suspected" for each in sights.shown)
            for sight in sights.shown:
                if found(sight):
                    return sight
            await asyncio.sleep(0.005)


@pytest.mark.parametrize(("relay", "state"), [("hold", "holding"), ("live", "streaming")])
async def test_an_exchange_is_seen_from_its_request_to_its_end(
    guarded: Guard, relay: str, state: str
) -> None:
    """It asks, its reply is held or streamed, it is gone once it has been answered."""
    asked, written = asyncio.Event(), asyncio.Event()
    events = list(Reply(PROSE, comments=0).events())
    answer = [head(), wait(asked), *events[:5], wait(written), *events[5:]]
    async with guarded([answer]) as ours, ours.client() as client:
        reading = asyncio.create_task(
            client.chat.completions.create(
                **REQUEST, stream=True, extra_headers={"X-Loopguard-Relay": relay}
            )
        )
        sight = await seen(ours, lambda sight: sight.state == "asking")
        assert (sight.model, sight.profile, sight.dialect) == ("m/x", "default", "chat")
        assert (sight.attempt, sight.chars, sight.levels) == (1, 0, {})
        asked.set()
        sight = await seen(ours, lambda sight: sight.state == state)
        assert 0 < sight.chars < len(PROSE)
        assert sight.levels.keys() == {"frequency", "stretch", "length"}
        assert sight.elapsed_s > 0
        written.set()
        async for _ in await reading:
            pass
        assert ours.api._routes.sights() == (0, 0, [], "")


async def test_suspicion_and_the_wait_after_a_trip_are_seen(guarded: Guard) -> None:
    """Near its floor a reply is suspected; after the trip its exchange waits to ask again."""
    near, far = asyncio.Event(), asyncio.Event()
    events = list(loop(chars=20_000, delta_chars=500).events())
    answer = [head(), *events[:7], wait(near), *events[7:]]
    good = [head(), wait(far), *Reply("Good.").events()]
    waits = {"retry__initial_wait_s": "600", "retry__max_wait_s": "600"}
    async with guarded([answer, good], **waits) as ours, ours.client() as client:
        reading = asyncio.create_task(client.chat.completions.create(**REQUEST))
        sight = await seen(ours, lambda sight: sight.state == "suspected")
        assert 0.25 <= sight.levels["stretch"].now / sight.levels["stretch"].floor < 1
        near.set()
        sight = await seen(ours, lambda sight: sight.state == "waiting")
        assert (sight.attempt, sight.chars) == (1, 3840)
        await ours.api.flush()
        assert ours.api._routes.sights().newest_loop == f"{sight.exchange}/1"
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def test_a_name_is_seen_as_the_ledger_keeps_it(guarded: Guard) -> None:
    """However long the names that a caller gives, what is kept and shown of them is bounded."""
    asked = REQUEST | {"model": "m" * 1_000_000, "extra_body": {"session_id": "s" * 1_000_000}}
    async with guarded([[head(), stall]]) as ours, ours.client() as client:
        asking = asyncio.create_task(client.chat.completions.create(**asked))
        sight = await seen(ours, lambda sight: sight.state == "asking")
        assert sight.model == "m" * LONGEST_NAME_CHARS
        assert sight.run == "s" * LONGEST_NAME_CHARS
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
