"""Replies that are held by their runs."""

import json

import pytest

from loopguard.core import sse
from loopguard.core.dialects import chat


def event(text: str, finish: str | None = None, index: int = 0) -> bytes:
    choice = {"index": index, "delta": {"content": text}, "finish_reason": finish}
    chunk = {"id": "gen-1", "object": "chat.completion.chunk", "choices": [choice]}
    return sse.encode(json.dumps(chunk).encode())


def held(*events: bytes) -> chat.Held:
    parser, reply = chat.Parser(), chat.Held()
    for raw in events:
        (block,) = sse.Decoder(len(raw)).feed(raw)
        reply.add(block, parser.parse(block.data or b""))
    return reply


@pytest.mark.parametrize("first", [event("a"), event("a", "stop")], ids=["a text", "a finish"])
@pytest.mark.parametrize("texts", [["b"], ["b", '"\n'], ["b" * 5000, "c"], ["é" * 3000]], ids=len)
def test_a_run_is_held_as_its_events_are(first: bytes, texts: list[str]) -> None:
    """A run is held as its events would be, in no more room, whatever comes before and after it."""
    events = [event(text) for text in texts]
    by_events = held(first, *events, event("", "stop"))
    by_run = held(first)
    by_run.extend(b"".join(events), "".join(texts), 1)
    after = event("", "stop")
    (block,) = sse.Decoder(len(after)).feed(after)
    by_run.add(block, chat.Parser().parse(block.data or b""))
    assert by_run.whole() == by_events.whole()
    assert by_run.size_bytes <= by_events.size_bytes


def test_choices_without_end_are_held_whole() -> None:
    """More choices in turns than runs are open at once are held, each with all of its text."""
    choices = range(300)
    turns = [event(text, index=index) for text in ("one ", "two") for index in choices]
    whole = held(*turns).whole()
    assert [choice["index"] for choice in whole["choices"]] == list(choices)
    assert {choice["message"]["content"] for choice in whole["choices"]} == {"one two"}


def thought(text: str, details: str = "reasoning_details") -> bytes:
    delta = {"content": "", "reasoning": text, details: [{"type": "reasoning.text", "text": text}]}
    chunk = {"id": "gen-1", "choices": [{"index": 0, "delta": delta}]}
    return sse.encode(json.dumps(chunk).encode())


@pytest.mark.parametrize("details", ["reasoning_details", "of_another_provider"])
def test_a_run_of_thoughts_is_held_as_its_events_are(details: str) -> None:
    """Of events that say their text twice each text is held, known or not."""
    events = [thought(text, details) for text in ("a", "b", "c")]
    by_events, by_run = held(*events), held(events[0])
    by_run.extend(b"".join(events[1:]), "bc", 2)
    assert by_run.whole() == by_events.whole()
    assert list(by_run.stream()) == list(by_events.stream())
