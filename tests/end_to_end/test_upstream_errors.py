"""The upstream's own errors: asked again where that can help, else passed on as they were said."""

import asyncio
import json
from typing import Any

import openai
import pytest

from tests.end_to_end.conftest import Guard, Guarded
from tests.end_to_end.raw_caller import (
    PATIENCE_S,
    REQUEST,
    RawCaller,
    ask,
    asked,
    metrics,
    turning_until,
)
from tests.fake_openrouter import DONE, Line, Message, Refusal, Reply, Step, fault, head, loop
from tests.fake_openrouter.chat import GENERATION_ID

GOOD = Reply("The good answer.")
EVENTS = list(GOOD.events())
MODES = ("held", "whole", "live")


def outcomes(guarded: Guarded) -> list[str]:
    (record,) = guarded.records
    return [attempt.outcome for attempt in record.attempts]


def record_waits(guarded: Guarded) -> list[float]:
    """Wait for nothing, and note what would have been waited for."""
    waits: list[float] = []

    async def sleep(wait_s: float) -> None:
        waits.append(wait_s)

    object.__setattr__(guarded.api._routes.service.shared, "sleep", sleep)
    return waits


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 413, 422])
async def test_refusal_is_passed_on(guarded: Guard, status: int, mode: str) -> None:
    """A refusal for the request's own sake comes at once, with its status, body and headers."""
    body, headers = asked(mode)
    refusal = Refusal(status, metadata={"reasons": ["x"]}, headers={"X-Of-The-Upstream": "1"})
    async with guarded([refusal]) as ours:
        caller = await ask(ours, body, headers)
        assert caller.status == status
        assert caller.error["metadata"] == {"reasons": ["x"]}
        assert json.loads(caller.body)["user_id"] == "user_fake"
        assert caller.headers["x-of-the-upstream"] == "1"
        assert caller.headers["content-type"] == "application/json"
        assert "x-should-retry" not in caller.headers
        assert outcomes(ours) == ["refused"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 524, 529])
async def test_passing_failure_is_asked_again(guarded: Guard, status: int, mode: str) -> None:
    """What may pass is asked again invisibly, after the time that the upstream asks for."""
    body, headers = asked(mode)
    script = [Refusal(status, retry_after=7), Refusal(status, retry_after=500), GOOD]
    async with guarded(script) as ours:
        waits = record_waits(ours)
        caller = await ask(ours, body, headers)
        assert (caller.status, waits) == (200, [7.0, 60.0])
        assert caller.headers["x-loopguard-attempts"] == "3"
        assert outcomes(ours) == ["refused", "refused", "completed"]


async def test_what_is_in_flight_is_waited_for(guarded: Guard) -> None:
    """A 402 that says when, as after a generation that was cut, is asked again then."""
    async with guarded([loop(), Refusal(402, retry_after=3), GOOD]) as ours:
        waits = record_waits(ours)
        assert (await ask(ours)).status == 200
        assert waits[1] == 3.0
        assert outcomes(ours) == ["looped", "refused", "completed"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("status", [429, 503])
async def test_spent_budget(guarded: Guard, status: int, mode: str) -> None:
    """The last refusal is passed on as it was, but SDKs are told not to multiply it."""
    body, headers = asked(mode)
    async with guarded([Refusal(status, retry_after=7)]) as ours:
        record_waits(ours)
        caller = await ask(ours, body, headers)
        assert caller.status == status
        assert caller.error["code"] == status
        assert caller.headers["retry-after"] == "7"
        assert caller.headers["x-should-retry"] == "false"
        assert outcomes(ours) == ["refused"] * 4


async def test_sdk_does_not_multiply_it(guarded: Guard) -> None:
    """The openai client asks once, and raises its own exception for the status."""
    async with guarded([Refusal(429)]) as ours:
        async with ours.client() as client:
            with pytest.raises(openai.RateLimitError):
                await client.chat.completions.create(model="m/x", messages=[])
        assert len(ours.fake.attempts) == 4


async def test_waits_without_a_word_grow(guarded: Guard) -> None:
    """Without a Retry-After the waits are shares of 1, 2 and 4 s."""
    async with guarded([Refusal(503)], retry__initial_wait_s="1") as ours:
        object.__setattr__(ours.api._routes.service.shared, "draw", lambda: 0.5)
        waits = record_waits(ours)
        await ask(ours)
        assert waits == [0.5, 1.0, 2.0]


ON_USAGE = {"code": 502, "message": "Token limit reached"}


def faulty(shape: str, code: int, *, after: int) -> list[Step]:
    """A stream with an error of a shape after so many events; the first one is a comment."""
    if shape == "on the usage chunk":
        reply = Reply("" if after == 1 else "The good", fault=ON_USAGE | {"code": code})
        return [head(), *reply.events()]
    failed = fault(code, "Upstream error", "provider_unavailable", choices=shape == "with choices")
    return [head(), *EVENTS[:after], failed]


SHAPES = ["with choices", "without choices"]


def told(caller: RawCaller, mode: str) -> dict[str, Any]:
    """The error as the caller sees it, in a reply of status 200."""
    if mode == "whole":
        (choice,) = json.loads(caller.body)["choices"]
        assert choice["finish_reason"] == "error"
        error = choice["error"]
        assert isinstance(error, dict)
        return error
    events = [json.loads(line[6:]) for line in caller.body.splitlines() if b'"error":{' in line]
    (error,) = (event["error"] for event in events)
    assert isinstance(error, dict)
    return error


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", SHAPES)
async def test_fault_before_content(guarded: Guard, shape: str, mode: str) -> None:
    """An error inside the stream before any content is asked again, and completes invisibly."""
    body, headers = asked(mode)
    async with guarded([faulty(shape, 502, after=1), GOOD]) as ours:
        caller = await ask(ours, body, headers)
        assert caller.status == 200
        assert b"The good" in caller.body
        assert b"Upstream error" not in caller.body
        assert outcomes(ours) == ["refused", "completed"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("code", "attempts"), [(502, 4), (429, 4), (400, 1), (402, 1)])
async def test_fault_before_content_has_its_status(
    guarded: Guard, shape: str, mode: str, code: int, attempts: int
) -> None:
    """Before any content an error inside the stream is told by the status that it names."""
    body, headers = asked(mode)
    async with guarded([faulty(shape, code, after=1)]) as ours:
        caller = await ask(ours, body, headers)
        assert (caller.status, caller.error["code"]) == (code, code)
        assert caller.error["message"] == "Upstream error"
        assert caller.error["metadata"] == {"error_type": "provider_unavailable"}
        assert caller.headers["content-type"].startswith("application/json")
        assert outcomes(ours) == ["refused"] * attempts
        assert (caller.headers.get("x-should-retry") == "false") == (attempts > 1)


@pytest.mark.parametrize("mode", ["held", "whole"])
@pytest.mark.parametrize("shape", [*SHAPES, "on the usage chunk"])
async def test_fault_after_content_is_asked_again(guarded: Guard, shape: str, mode: str) -> None:
    """Held, an error after content is asked again too: nothing of that content had left."""
    body, headers = asked(mode)
    async with guarded([faulty(shape, 502, after=2), GOOD]) as ours:
        caller = await ask(ours, body, headers)
        assert caller.body.count(b"The good") == 1
        assert b"answer" in caller.body
        assert outcomes(ours) == ["refused", "completed"]


@pytest.mark.parametrize("mode", ["held", "whole"])
@pytest.mark.parametrize("shape", [*SHAPES, "on the usage chunk"])
@pytest.mark.parametrize(("code", "attempts"), [(502, 4), (400, 1)])
async def test_fault_after_content_ends_the_reply(
    guarded: Guard, shape: str, mode: str, code: int, attempts: int
) -> None:
    """Where asking again does not help, the part that came is passed on with its error."""
    body, headers = asked(mode)
    async with guarded([faulty(shape, code, after=2)]) as ours:
        caller = await ask(ours, body, headers)
        assert caller.status == 200
        assert caller.body.count(b"The good") == 1
        assert outcomes(ours) == ["refused"] * attempts
        assert told(caller, mode)["code"] == code


@pytest.mark.parametrize("shape", [*SHAPES, "on the usage chunk"])
@pytest.mark.parametrize("code", [502, 400])
async def test_fault_after_content_live(guarded: Guard, shape: str, code: int) -> None:
    """Live, an error after content is passed on byte for byte, and nothing is asked again."""

    async def until_committed(_: Line) -> None:
        (exchange,) = ours.api._routes.exchanges
        await turning_until(lambda: exchange._committed)

    begin, comment, content, *end = faulty(shape, code, after=2)
    steps = [begin, comment, content, until_committed, *end]
    body, headers = asked("live")
    async with guarded([steps, GOOD]) as ours:
        caller = await ask(ours, body, headers)
        (attempt,) = ours.fake.attempts
        sent = b"".join(step for step in steps if isinstance(step, bytes))
        expected = sent.replace(
            GENERATION_ID.encode(), attempt.generation_id.encode()
        ).removesuffix(DONE)
        assert caller.body == expected
        assert outcomes(ours) == ["refused"]


@pytest.mark.parametrize("mode", ["held", "live"])
async def test_client_raises_for_it(guarded: Guard, mode: str) -> None:
    """The openai client raises for an error inside a stream, whether or not content came before."""

    async def read(guarded: Guarded) -> None:
        async with guarded.client() as client:
            stream = await client.chat.completions.create(
                model="m/x",
                messages=[],
                stream=True,
                extra_headers=asked(mode)[1],
            )
            async for _ in stream:
                pass

    async with guarded([faulty("with choices", 400, after=2)]) as ours:
        with pytest.raises(openai.APIError, match="Upstream error"):
            await read(ours)
        assert len(ours.fake.attempts) == 1


async def test_any_trip_makes_it_a_loop(guarded: Guard) -> None:
    """An exchange that looped and then met an outage failed by its loops, and says so."""
    async with guarded([loop(), Refusal(503)]) as ours:
        caller = await ask(ours)
        assert (caller.status, caller.error["type"]) == (502, "model_response_loop")
        assert caller.error["message"].startswith("model looped 1 of 4 attempts: model looped: ")
        assert caller.error["metadata"]["loop_aborts"] == 1
        assert outcomes(ours) == ["looped", "refused", "refused", "refused"]


async def test_final_refusal_after_a_loop_is_the_upstreams(guarded: Guard) -> None:
    """What the upstream refuses for the request's own sake is told, loops before it or not."""
    async with guarded([loop(), Refusal(402)]) as ours:
        caller = await ask(ours)
        assert (caller.status, caller.error["code"]) == (402, 402)
        assert caller.headers["x-loopguard-loop-aborts"] == "1"


async def test_unfinished_choice_is_no_reply(guarded: Guard) -> None:
    """A stream that breaks off after one of two choices has finished is asked for again."""
    two = Reply(choices=(Message("short"), Message("a longer one that is never finished")))
    lines = list(two.events())
    finished = next(number for number, line in enumerate(lines) if b'"stop"' in line)
    async with guarded([[head(), *lines[: finished + 1]], two]) as ours:
        answer = await ask(ours, REQUEST)
        assert [choice["finish_reason"] for choice in json.loads(answer.body)["choices"]] == [
            "stop",
            "stop",
        ]
        assert len(ours.fake.attempts) == 2


@pytest.mark.parametrize("late", [False, True], ids=["at once", "while idle"])
async def test_a_second_response_reaches_nobody(guarded: Guard, late: bool) -> None:  # noqa: FBT001
    """A response that nobody asked for is not taken for the answer to the next request."""
    unasked = b"".join(b"%x\r\n%b\r\n" % (len(data), data) for data in Reply("Stolen.").events())
    lines = (
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    stolen = lines.encode() + unasked + b"0\r\n\r\n"
    released = asyncio.Event()

    async def send(line: Line) -> None:
        if late:
            await line.raw(b"0\r\n\r\n")
            await released.wait()
            await line.raw(stolen)
        else:
            await line.raw(b"0\r\n\r\n" + stolen)
        await line.connection.left.wait()

    async with guarded([[head(), *EVENTS, send], GOOD]) as ours:
        first = await ask(ours)
        async with asyncio.timeout(PATIENCE_S):
            while (await metrics(ours.admin))["loopguard_open_upstreams"]:
                pass
        (connection,) = ours.fake.connections
        line = ours.fake.attempts[0].line
        written_bytes = line.written_bytes + (len(stolen) if late else 0)
        released.set()
        await turning_until(lambda: line.written_bytes == written_bytes)
        second = await ask(ours)
        assert b"The good answer." in first.body
        assert b"The good answer." in second.body
        assert len(ours.fake.attempts) == 2
        assert not connection.open
