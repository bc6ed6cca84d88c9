"""Every kind of loop, in every channel, is cut and asked for again."""

import json
from itertools import count
from typing import Any

import aiohttp
import pytest

from tests.end_to_end.conftest import Guard
from tests.fake_openrouter import Message, Reply, ToolCall

GOOD = Reply("The good answer.")
CHARS = 60_000

SENTENCES = [
    f"On day {number} the crew mended sail {number * 37 % 101}, wrote letter {number * 53 % 997} "
    f"home and counted {number * 71 % 89} gulls above the pier."
    for number in range(110)
]
NOVEL = " ".join(SENTENCES)


def repeated(unit: str) -> str:
    return (unit * (CHARS // len(unit) + 1))[:CHARS]


def counting(round_of: str) -> str:
    rounds = (round_of.format(number) for number in count(1))
    text = ""
    while len(text) < CHARS:
        text += next(rounds)
    return text


THOUGHT = "Wait, let me check the second condition again before I go on with it. "
LOOPS = {
    "one word": Message(repeated("the ")),
    "void": Message(repeated("void 0; ")),
    "a sentence": Message(repeated(THOUGHT)),
    "after 2,000 good words": Message(f"{NOVEL} {repeated(THOUGHT)}"),
    "counting rounds": Message(
        counting("Step {}: open the file, read the next line and check whether it is empty.\n")
    ),
    "Chinese": Message(repeated("我会再检查一遍这个条件是否成立,然后继续。")),
    "newlines": Message("Here it is:" + "\n" * CHARS),
    "without spaces": Message(repeated("a();")),
    "in the reasoning": Message("So:", reasoning=repeated(THOUGHT)),
    "in the arguments": Message(
        tool_calls=(
            ToolCall("read", '{"path": "a.py"}', "call_1"),
            ToolCall("write", json.dumps({"text": repeated("print('x')\n")}), "call_2"),
        )
    ),
}


def test_the_good_words_are_as_many_as_they_say() -> None:
    """The lead-in of the late loop has more than 2,000 words."""
    assert len(NOVEL.split()) > 2000


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("name", LOOPS)
async def test_loop_is_cut_and_asked_for_again(guarded: Guard, name: str, *, stream: bool) -> None:
    """The loop is cut within 20,000 characters, and its caller sees the good reply alone."""
    body: dict[str, Any] = {
        "model": "m/x",
        "messages": [{"role": "user", "content": "hello"}],
        "stream": stream,
    }
    async with (
        guarded([Reply(LOOPS[name], delta_chars=24), GOOD]) as ours,
        aiohttp.ClientSession() as session,
        session.post(f"{ours.origin}/v1/chat/completions", json=body) as response,
    ):
        answer = await response.text()
    looped, completed = ours.records[0].attempts
    assert (looped.outcome, completed.outcome) == ("looped", "completed")
    onset_chars = len(NOVEL) if name == "after 2,000 good words" else 0
    assert onset_chars < looped.chars < onset_chars + 20_000
    assert "The good" in answer
    assert "call" not in answer
    assert "check" not in answer
