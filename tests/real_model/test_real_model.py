"""A real model as upstream, which really loops: llama.cpp's server with SmolLM2-135M-Instruct.

Replies are greedy and the prompt cache is off, so a request has one reply, asked through loopguard
or not. Where it loops is the model's own doing (`LOOPS`).
"""

import asyncio
import json
import os
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import aiohttp
import openai
import pytest

from tests.end_to_end.command import Command, serving
from tests.real_model.conftest import See
from tests.real_model.install import CACHE, installed

pytestmark = pytest.mark.skipif(
    not installed(), reason=f"no real model in {CACHE}: `python -m tests.real_model` gets it"
)

at_length = pytest.mark.skipif(
    "LOOPGUARD_AT_LENGTH" not in os.environ,
    reason="two long replies at once take a minute: `python -m tests.real_model` asks for them",
)

PROOFS = "Prove that the square root of 2 is irrational, then give ten further different proofs."
OUTLINE = "Write a deeply nested bullet outline of the whole animal kingdom."
# Where the greedy reply begins to repeat itself, in characters.
LOOPS = {PROOFS: 688, OUTLINE: 0}

# The shipped floor is 2,350 characters; the rule judges every 256 and needs a first round.
LATEST_TRIP_CHARS = 3_500

# A reply that fills the model's context takes a minute on one free core, two such at once three.
PATIENCE_S = 300.0

SLOT_FREE_WITHIN_S = 2.0

MODES = {"live": "live", "held": "hold", "whole": None}


def request_of(prompt: str, **more: Any) -> dict[str, Any]:
    return {
        "model": "smollm2",
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0,
        "cache_prompt": False,
    } | more


@dataclass
class Answer:
    """What a real client made of a reply: texts and finish reasons by choice."""

    texts: dict[int, str]
    finishes: dict[int, str]
    completion_tokens: int | None = None
    error: openai.APIError | None = None

    @property
    def chars(self) -> int:
        return sum(len(text) for text in self.texts.values())


async def ask(origin: str, mode: str, **request: Any) -> Answer:
    """Ask by the OpenAI SDK, which asks once."""
    client = openai.AsyncOpenAI(base_url=f"{origin}/v1", api_key="none", max_retries=0)
    answer = Answer({}, {})
    known = {name: request.pop(name) for name in ("model", "messages", "temperature")}
    async with asyncio.timeout(PATIENCE_S), client:
        try:
            if mode == "whole":
                _read_whole(
                    answer, await client.chat.completions.create(**known, extra_body=request)
                )
            else:
                stream = await client.chat.completions.create(
                    **known,
                    stream=True,
                    stream_options={"include_usage": True},
                    extra_body=request,
                    extra_headers={"X-Loopguard-Relay": str(MODES[mode])},
                )
                async for chunk in stream:
                    _read_chunk(answer, chunk)
        except openai.APIError as error:
            answer.error = error
    return answer


def _read_whole(answer: Answer, whole: Any) -> None:
    answer.completion_tokens = whole.usage.completion_tokens
    for choice in whole.choices:
        answer.texts[choice.index] = choice.message.content
        answer.finishes[choice.index] = choice.finish_reason


def _read_chunk(answer: Answer, chunk: Any) -> None:
    if chunk.usage:
        answer.completion_tokens = chunk.usage.completion_tokens
    for choice in chunk.choices:
        text = answer.texts.get(choice.index, "") + (choice.delta.content or "")
        answer.texts[choice.index] = text
        if choice.finish_reason:
            answer.finishes[choice.index] = choice.finish_reason


async def until_slots(model: str, *, busy: bool) -> float:
    """Ask the model for its slots until one is busy, or none; return the seconds that took."""
    began_at = perf_counter()
    async with asyncio.timeout(PATIENCE_S), aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"{model}/slots") as response:
                slots = await response.json()
            if any(slot["is_processing"] for slot in slots) == busy:
                return perf_counter() - began_at


async def exchange(command: Command) -> dict[str, Any]:
    """The command's log line of its only exchange."""
    record: dict[str, Any] = json.loads(await command.line('"message": "exchange"'))
    return record


def origin_of(command: Command) -> str:
    return f"http://127.0.0.1:{command.port}"


async def post(origin: str, **request: Any) -> bytes:
    """The bytes of an answer of status 200."""
    async with (
        asyncio.timeout(PATIENCE_S),
        aiohttp.ClientSession() as session,
        session.post(
            f"{origin}/v1/chat/completions", json=request, headers={"X-Loopguard-Relay": "live"}
        ) as response,
    ):
        assert response.status == 200
        return await response.read()


def without(known: Any, *names: str) -> Any:
    return {name: value for name, value in known.items() if name not in names}


@pytest.mark.parametrize("choices", [1, 2])
@pytest.mark.parametrize("mode", MODES)
async def test_a_reply_is_the_models_own(model: str, see: See, mode: str, choices: int) -> None:
    """A reply that does not loop is what the model says without loopguard, in every choice."""
    request = request_of("Name three birds.", max_tokens=24, n=choices)
    own = await ask(model, "whole", **request)
    async with serving(f"{model}/v1") as command:
        guarded = await ask(origin_of(command), mode, **request)
    assert guarded == own
    assert len(own.texts) == choices
    assert all(own.texts.values())
    see(f"{mode}, n: {choices}: {guarded.texts[0]!r} as without loopguard")


@pytest.mark.parametrize("choices", [1, 2])
async def test_a_whole_reply_lacks_nothing(model: str, choices: int) -> None:
    """The object put together from the stream holds all that the model's own whole reply holds."""
    request = request_of("Name three birds.", max_tokens=24, n=choices)
    own = json.loads(await post(model, **request))
    async with serving(f"{model}/v1") as command:
        guarded = json.loads(await post(origin_of(command), **request))
    differing = ("id", "created", "timings", "choices")
    assert without(own, *differing).items() <= guarded.items()
    assert guarded["timings"].keys() == own["timings"].keys()
    for ours, its in zip(guarded["choices"], own["choices"], strict=True):
        assert without(its, "message").items() <= ours.items()
        assert its["message"].items() <= ours["message"].items()


async def test_its_refusal_is_passed_on(model: str, see: See) -> None:
    """An error before the stream reaches the caller as the model's server wrote it."""
    request = request_of("Name three birds.", n=3)  # it has two slots
    own = (await ask(model, "whole", **request)).error
    async with serving(f"{model}/v1") as command:
        refused = [(await ask(origin_of(command), mode, **request)).error for mode in MODES]
    assert isinstance(own, openai.BadRequestError)
    for error in refused:
        assert isinstance(error, openai.BadRequestError)
        assert error.body == own.body
    see(f"n: 3 is refused by the model's server and so by loopguard: {own.body}")


async def test_its_wire_is_taken_as_it_is(model: str, see: See) -> None:
    """What llama.cpp writes otherwise than OpenRouter is read, and leaves live as it came."""
    # Some 1,200 tokens, which it reads for seconds and writes comments meanwhile.
    request = request_of("Name three birds. " * 240, max_tokens=100, stream=True)
    request["stream_options"] = {"include_usage": True}
    async with serving(f"{model}/v1", server__keepalive_s="0") as command:
        live = await post(origin_of(command), **request)
        (attempt,) = (await exchange(command))["attempt"]
    blocks = live.split(b"\n\n")
    comments = [block for block in blocks if block.startswith(b":")]
    first, *chunks, last, usage = [
        json.loads(block[6:]) for block in blocks if block.startswith(b"data: {")
    ]
    assert set(comments) == {b":"}
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": None}
    assert last["choices"] == [{"finish_reason": "length", "index": 0, "delta": {}}]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 100
    assert "timings" in usage
    assert next(iter(usage)) == "choices"
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)
    assert attempt["chars"] == len(text)
    see(
        f"wire: {len(comments)} bare comments, {len(chunks)} deltas for 100 tokens, `created` over "
        f"{usage['created'] - first['created']} s"
    )


@pytest.mark.parametrize(
    ("prompt", "mode", "choices"),
    [
        (PROOFS, "live", 1),
        (PROOFS, "whole", 1),
        (OUTLINE, "held", 1),
        pytest.param(OUTLINE, "live", 2, marks=at_length),
        pytest.param(OUTLINE, "whole", 2, marks=at_length),
    ],
)
async def test_a_greedy_loop_is_cut(
    model: str, see: See, prompt: str, mode: str, choices: int
) -> None:
    """A loop is cut soon after its onset, the caller is told, and the model stops writing."""
    async with serving(f"{model}/v1", retry__max_attempts="1") as command:
        asking = asyncio.create_task(ask(origin_of(command), mode, **request_of(prompt, n=choices)))
        await until_slots(model, busy=True)
        answer = await asking
        free_after_s = await until_slots(model, busy=False)
        (attempt,) = (await exchange(command))["attempt"]
    assert attempt["outcome"] == "looped"
    trip_chars = attempt["chars"] // choices
    assert LOOPS[prompt] < trip_chars < LOOPS[prompt] + LATEST_TRIP_CHARS
    assert answer.error is not None
    assert answer.error.type == "model_response_loop"
    assert answer.finishes == {}
    assert (0 < answer.chars < attempt["chars"]) if mode == "live" else answer.chars == 0
    assert free_after_s < SLOT_FREE_WITHIN_S
    see(
        f"{mode}, n: {choices}, {prompt[:24]!r}...: cut by {attempt['rule']} at character "
        f"{trip_chars} after {attempt['duration_s']:.0f} s; {answer.chars} of {attempt['chars']} "
        f"characters had left; slots free {free_after_s:.2f} s after the caller was told"
    )


@pytest.mark.parametrize(
    ("mode", "choices"), [("held", 1), pytest.param("whole", 2, marks=at_length)]
)
async def test_a_retry_at_another_temperature_ends(
    model: str, see: See, mode: str, choices: int
) -> None:
    """What loops at temperature 0 is asked for again at 1, and that reply comes to its own end."""
    escape = "raise_temperature,drop_seed"
    async with serving(f"{model}/v1", profiles__default__escape__steps=escape) as command:
        answer = await ask(
            origin_of(command), mode, **request_of(OUTLINE, n=choices, seed=1, max_tokens=1000)
        )
        await until_slots(model, busy=False)
        attempts = (await exchange(command))["attempt"]
    assert answer.error is None
    assert set(answer.finishes.values()) == {"stop"}
    assert len(answer.texts) == choices
    first, *_, last = attempts
    assert (first["outcome"], last["outcome"]) == ("looped", "completed")
    assert answer.chars == last["chars"]
    told = ", then ".join(f"{one['outcome']} at {one['chars']} characters" for one in attempts)
    see(f"{mode}, n: {choices}, retried at temperature 1: {told}, by its own end")
