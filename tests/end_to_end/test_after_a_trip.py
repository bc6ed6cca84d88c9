"""What a profile lets a retry change, and what ends the retrying early."""

import json
from typing import Any

import aiohttp
import pytest

from tests.end_to_end.conftest import Guard, Guarded
from tests.end_to_end.raw_caller import ask as raw_ask
from tests.fake_openrouter import Message, Refusal, Reply, loop

GOOD = Reply("The good answer.")
LEAD_IN = " ".join(f"Sentence {number} says {number * 7919} new things." for number in range(40))
PROFILE = "LOOPGUARD_PROFILES__DEFAULT__"


async def ask(ours: Guarded, prompt: str = "hello", **more: Any) -> tuple[int, dict[str, Any]]:
    body = {"model": "m/x", "messages": [{"role": "user", "content": prompt}], "seed": 7} | more
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{ours.origin}/v1/chat/completions", json=body) as response,
    ):
        return response.status, await response.json()


async def test_identical_attempts_end_the_retrying(guarded: Guard) -> None:
    """After two loops with the same text a third attempt is not made, and the error says why."""
    async with guarded([loop(lead_in=LEAD_IN)]) as ours:
        status, answer = await ask(ours)
    assert len(ours.fake.attempts) == 2
    assert status == 502
    assert answer["error"]["message"].endswith("identical, so asking again is useless")


async def test_identical_attempts_go_on_where_the_profile_says_so(guarded: Guard) -> None:
    """A profile without the rule makes all its attempts."""
    environ = {"profiles__default__stop_on_identical": "false"}
    async with guarded([loop(lead_in=LEAD_IN)], **environ) as ours:
        await ask(ours)
    assert len(ours.fake.attempts) == 4


async def test_loops_that_say_nothing_else_are_not_called_identical(guarded: Guard) -> None:
    """Replies that loop from their first word on are asked for again: any loop would look so."""
    async with guarded([loop(), loop(), GOOD]) as ours:
        status, _ = await ask(ours)
    assert status == 200


async def test_retry_is_unchanged_by_default(guarded: Guard) -> None:
    """Without an escape every attempt is the same request."""
    async with guarded([loop(), loop(), GOOD]) as ours:
        await ask(ours)
    assert len({request.body for request in ours.fake.attempts}) == 1


@pytest.mark.parametrize("cached", [True, False])
async def test_loop_is_not_taken_from_a_cache_again(guarded: Guard, cached: bool) -> None:  # noqa: FBT001
    """Where the caller asks for the upstream's cache, an attempt after a loop clears it."""
    headers = {"X-OpenRouter-Cache": "true"} if cached else {}
    async with guarded([Refusal(503), loop(), GOOD]) as ours:
        await raw_ask(ours, headers=headers)
    cleared = [request.headers.get("x-openrouter-cache-clear") for request in ours.fake.attempts]
    assert cleared == [None, None, "true" if cached else None]


async def test_escape_adds_one_step_a_trip(guarded: Guard) -> None:
    """Each trip adds the next step of the profile's list to the next attempt."""
    environ = {
        "profiles__default__escape__steps": "ignore_provider,raise_temperature,drop_seed",
        "profiles__default__escape__temperature": "0.9",
    }
    async with guarded([loop(), loop(), loop(), GOOD], **environ) as ours:
        status, _ = await ask(ours)
    bodies = [request.json for request in ours.fake.attempts]
    assert status == 200
    assert [body.get("provider") for body in bodies] == [None] + 3 * [{"ignore": ["openai"]}]
    assert [body.get("temperature") for body in bodies] == [None, None, 0.9, 0.9]
    assert ["seed" in body for body in bodies] == [True, True, True, False]


async def test_identical_attempts_go_on_while_the_request_changes(guarded: Guard) -> None:
    """While the escape still changes the request, the same text twice ends nothing."""
    environ = {"profiles__default__escape__steps": "drop_seed,ignore_provider"}
    async with guarded([loop(lead_in=LEAD_IN)], **environ) as ours:
        await ask(ours)
    assert len(ours.fake.attempts) == 3


async def test_ignoring_the_only_provider_is_taken_back(guarded: Guard) -> None:
    """Where no provider is left, the next attempt goes out without that step."""
    environ = {"profiles__default__escape__steps": "ignore_provider,drop_seed"}
    async with guarded([loop(), Refusal(404), loop(), GOOD], **environ) as ours:
        status, _ = await ask(ours)
    assert status == 200
    bodies = [request.json for request in ours.fake.attempts]
    assert ["provider" in body for body in bodies] == [False, True, False, False]
    assert ["seed" in body for body in bodies] == [True, True, True, False]


async def test_ignoring_the_only_provider_costs_no_further_attempt(guarded: Guard) -> None:
    """Where it is taken back at the budget's end, the caller is told of the loops before it."""
    environ = {"profiles__default__escape__steps": "ignore_provider", "retry__max_attempts": "3"}
    async with guarded([loop(), loop(), Refusal(404), GOOD], **environ) as ours:
        status, answer = await ask(ours)
    assert len(ours.fake.attempts) == 3
    assert status == 502
    assert answer["error"]["type"] == "model_response_loop"
    assert answer["error"]["metadata"]["loop_aborts"] == 2


@pytest.mark.parametrize("reason", ["repetition", "repetition_truncation", "repeat"])
async def test_providers_verdict_is_a_trip(guarded: Guard, reason: str) -> None:
    """A reply that its provider finished as a repetition is discarded and asked for again."""
    async with guarded([Reply(Message("so so so so", finish=reason)), GOOD]) as ours:
        _, answer = await ask(ours)
    assert answer["choices"][0]["message"]["content"] == "The good answer."
    assert ours.records[0].attempts[0].rule == "upstream"


@pytest.mark.parametrize(("gate", "outcome"), [("true", "completed"), ("false", "looped")])
async def test_asked_repetition_is_no_loop(guarded: Guard, gate: str, outcome: str) -> None:
    """Lines that the request counts are delivered, and without the gate they are a loop."""
    lines = Reply("I will not talk in class again, I promise.\n" * 150)
    async with guarded([lines], profiles__default__request_gate=gate) as ours:
        await ask(ours, "Write 'I will not talk in class again, I promise.' 150 times.")
    assert ours.records[0].outcome == outcome


async def test_sample_is_logged_only_where_it_is_allowed(guarded: Guard) -> None:
    """A piece of what repeated stands in the record where the profile allows it alone."""
    for allowed in (False, True):
        environ = {"profiles__default__log_sample": json.dumps(allowed)}
        async with guarded([loop("The same words again. "), GOOD], **environ) as ours:
            await ask(ours)
        (trip, _) = ours.records[0].attempts
        assert ("words again." in (trip.sample or "")) == allowed
        assert ("words again." in json.dumps(ours.records[0].fields())) == allowed
