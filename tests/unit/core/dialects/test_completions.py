"""The legacy dialect: what is its own."""

import json
from typing import Any

import pytest

from loopguard.core import sse
from loopguard.core.dialects import completions
from loopguard.core.events import GenerationId, ReasoningDelta, Seen, TextDelta, UpstreamFault
from loopguard.errors import ModelResponseLoop
from tests.fake_openrouter import Message, Reply
from tests.fake_openrouter import completions as wire
from tests.unit.core.dialects.wires import blocks, events, hold


def chunk(**choice: Any) -> bytes:
    return sse.encode(json.dumps({"id": "gen-1", "choices": [{"index": 0, **choice}]}).encode())


def test_text_and_thinking() -> None:
    """A choice's text and its thinking are read on their channels."""
    read = events(completions, chunk(text="a", reasoning="b") + chunk(text=""))
    assert read[1:] == [TextDelta("a"), ReasoningDelta("b")]


def test_unknown_keys_arrive() -> None:
    """Keys that no rule names are in the whole reply, with their last value that is not null."""
    stream = chunk(text="a", mood=1) + chunk(text="b", mood=2) + chunk(text=None, mood=None)
    assert hold(completions, stream).whole()["choices"][0] == {"index": 0, "text": "ab", "mood": 2}


def test_log_probabilities_are_lists_side_by_side() -> None:
    """Lists of log probabilities are joined, each with its own."""
    stream = b"".join(
        chunk(text=text, logprobs={"tokens": [text], "top_logprobs": None}) for text in "ab"
    )
    (choice,) = hold(completions, stream).whole()["choices"]
    assert choice["logprobs"] == {"tokens": ["a", "b"], "top_logprobs": None}


def test_error_after_text_is_the_choices() -> None:
    """An error that came after part of a reply stands in the choice."""
    error = {"code": 400, "message": "Token limit reached"}
    last = sse.encode(json.dumps({"error": error, "choices": [{"index": 0, "text": ""}]}).encode())
    stream = chunk(text="part") + last
    assert UpstreamFault(400, error) in events(completions, stream)
    (choice,) = hold(completions, stream).whole()["choices"]
    assert choice == {"index": 0, "text": "part", "finish_reason": "error", "error": error}
    bare = sse.encode(json.dumps({"error": error, "choices": []}).encode())
    assert hold(completions, chunk(text="part") + bare).whole()["choices"] == [choice]
    own = chunk(text="part") + chunk(text="", finish_reason="error", error=error)
    assert hold(completions, own).whole()["choices"] == [choice]


def test_running_fields_are_the_first_ones() -> None:
    """The clock of a whole reply is that of its beginning."""
    stream = b"".join(
        sse.encode(json.dumps({"created": number, "choices": [{"text": "x"}]}).encode())
        for number in range(3)
    )
    whole = hold(completions, stream).whole()
    assert (whole["created"], whole["choices"][0]["text"]) == (0, "xxx")


def test_the_usage_comes_in_a_chunk_of_its_own() -> None:
    """A caller that did not ask for the usage is spared the chunk that carries nothing else."""
    parser = completions.Parser()
    told = [
        parser.parse(block.data or b"").usage_only for block in blocks(wire.stream(Reply("Hi")))
    ]
    assert told == [False, False, True, False]


def test_choices_in_turns_are_held_as_small() -> None:
    """Choices whose deltas take turns are kept as small as one."""
    text = "A word and another. " * 1000
    reply = Reply(choices=(Message(text), Message(text)), delta_chars=4)
    assert hold(completions, wire.stream(reply)).size_bytes < 3 * len(text)


def test_error_event_is_chats_with_text() -> None:
    """The event that fails a stream is a chunk of this wire, without choices."""
    seen = Seen(GenerationId("gen-1", "m", None), 7, None)
    (block,) = blocks(completions.error_event(ModelResponseLoop("x"), seen))
    told = json.loads(block.data or b"")
    assert told["object"] == "text_completion"
    assert "choices" not in told
    assert told["error"]["code"] == 400


@pytest.mark.parametrize(
    "choice", [{"text": 7}, {"text": "x", "reasoning": []}, {"text": "x", "logprobs": [1]}]
)
def test_what_is_no_chunk_is_refused(choice: dict[str, Any]) -> None:
    """A data line that is not of the wire raises ValueError."""
    with pytest.raises(ValueError):  # noqa: PT011 - the attempt knows no more either
        events(completions, chunk(**choice))
