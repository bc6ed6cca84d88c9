"""Saved replies are read as the events that a proxy would have seen."""

import gzip
import io
import json
from collections.abc import Iterable

import pytest

from loopguard.core.events import ArgumentsDelta, ReasoningDelta, TextDelta
from loopguard.scan import saved
from loopguard.scan.saved import Format, Saved, Unreadable, read_replies
from tests.fake_openrouter import Message, Reply, ToolCall, fault, thought

REPLY = Reply(
    Message(
        "Fine, \u4f60\u597d \U0001f600.",
        reasoning=(thought("Let me see.", "sig"),),
        tool_calls=(ToolCall("f", '{"a":1}', "c1"), ToolCall("g", '{"b":2}', "c2")),
    ),
)
CARRIED = [
    ("arguments 0", '{"a":1}'),
    ("arguments 1", '{"b":2}'),
    ("content", "Fine, \u4f60\u597d \U0001f600."),
    ("reasoning", "Let me see."),
]


def read(
    content: bytes | str,
    name: str = "replies",
    kind: Format | None = None,
    field: str | None = None,
) -> list[tuple[str, list[tuple[str, str]]] | str]:
    """Each reply as its id and its text by place; what is no reply as its message."""
    content = content.encode() if isinstance(content, str) else content
    file = io.BufferedReader(io.BytesIO(content))
    found: list[tuple[str, list[tuple[str, str]]] | str] = []
    for reply in read_replies(file, name, kind, field):
        try:
            found.append(
                str(reply) if isinstance(reply, Unreadable) else (reply.id, by_place(reply))
            )
        except Unreadable as unreadable:
            found.append(str(unreadable))
    return found


def by_place(reply: Saved) -> list[tuple[str, str]]:
    texts: dict[str, str] = {}
    for event in reply.events:
        match event:
            case TextDelta(text, _):
                place = "content"
            case ReasoningDelta(text, _):
                place = "reasoning"
            case ArgumentsDelta(text, _, call):
                place = f"arguments {call}"
            case _:
                continue
        texts[place] = texts.get(place, "") + text
    return sorted(texts.items())


def lines(rows: Iterable[object]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def carried(found: list[tuple[str, list[tuple[str, str]]] | str]) -> list[tuple[str, str]]:
    ((_, texts),) = (reply for reply in found if not isinstance(reply, str))
    return texts


@pytest.mark.parametrize("name", ["reply.txt", "reply", "-"])
def test_a_text_is_one_reply(name: str) -> None:
    """Plain text is one reply under the file's name, its line ends as they are."""
    assert read("one\r\ntwo \u00e9", name) == [(name, [("content", "one\r\ntwo \u00e9")])]


def test_a_text_is_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A character that lies across two pieces of a text is one character."""
    monkeypatch.setattr(saved, "_CHUNK_BYTES", 1)
    assert read("\ufeffa\u4f60\U0001f600") == [("replies", [("content", "a\u4f60\U0001f600")])]


def test_a_recorded_stream_is_one_reply() -> None:
    """A recorded stream gives each channel the text that its deltas carried."""
    assert carried(read(REPLY.stream())) == CARRIED
    assert carried(read(REPLY.stream(), "x.sse")) == CARRIED


def test_a_completion_is_one_reply() -> None:
    """A whole chat completion gives the text of its stream, and every call a place of its own."""
    whole = REPLY.whole()
    for text in (json.dumps(whole), json.dumps(whole, indent=2)):
        (found,) = read(text)
        assert found[0] == whole["id"]
        assert carried([found]) == CARRIED


def test_reasoning_is_read_before_content() -> None:
    """Of a completion the reasoning comes first, as it was written."""
    file = io.BufferedReader(io.BytesIO(json.dumps(REPLY.whole()).encode()))
    (reply,) = read_replies(file, "x")
    assert isinstance(reply, Saved)
    kinds = [type(event) for event in reply.events]
    assert kinds[:4] == [ReasoningDelta, TextDelta, ArgumentsDelta, ArgumentsDelta]


def test_content_in_parts_and_plain_completions_are_read() -> None:
    """Content that comes in parts is joined, and a choice without a message has a text."""
    parts = [{"type": "text", "text": "a "}, {"type": "image_url"}, {"type": "text", "text": "b"}]
    rows = [{"choices": [{"message": {"content": parts}}]}, {"choices": [{"text": "a b"}]}]
    assert [reply[1] for reply in read(lines(rows))] == [[("content", "a b")]] * 2


@pytest.mark.parametrize("name", ["x", "x.jsonl", "x.json"])
def test_lines_of_json_are_replies(name: str) -> None:
    """Each line is a reply under its own id, or under its file and line; blank lines are none."""
    text = '{"id": "a", "text": "one"}\n\n{"id": 7, "reply": "two"}\r\n{"output": "three"}'
    assert read(text, name) == [
        ("a", [("content", "one")]),
        ("7", [("content", "two")]),
        (f"{name}:4", [("content", "three")]),
    ]


def test_a_list_of_objects_is_replies() -> None:
    """A JSON list is a reply for each of its objects."""
    text = json.dumps([{"text": "one"}, 5, {"id": "b", "content": "two"}], indent=1)
    assert read(text, "x") == [
        ("x[0]", [("content", "one")]),
        "x[1]: no JSON object",
        ("b", [("content", "two")]),
    ]


def test_the_field_is_chosen() -> None:
    """A named field is read and no other; it may hold a completion."""
    rows = [
        {"text": "no", "mine": "yes"},
        {"text": "no", "mine": {"choices": [{"message": {"content": "yes"}}]}},
        {"text": "no", "choices": []},
    ]
    assert read(lines(rows), "x", field="mine") == [
        ("x:1", [("content", "yes")]),
        ("x:2", [("content", "yes")]),
        "x:3: no text in mine; --field names another",
    ]


@pytest.mark.parametrize(
    "content", [b"plain text", lines([{"text": "a"}]).encode(), REPLY.stream()]
)
def test_gzip_is_undone(content: bytes) -> None:
    """Whatever was gzipped reads as it does by itself."""
    assert read(gzip.compress(content)) == read(content)


def test_the_format_can_be_told() -> None:
    """A text that begins like JSON or like a stream is a text where the caller says so."""
    for text in ('{"a": 1}\n', "data: [DONE]\n\n"):
        assert read(text, "x", "text") == [("x", [("content", text)])]
        assert read(text, "x.txt") == [("x.txt", [("content", text)])]


@pytest.mark.parametrize("text", ["[Verse 1]\nla la", "{ color: red }", "data: none", ": no"])
def test_a_text_is_taken_for_nothing_else(text: str) -> None:
    """A text that begins with a bracket or a colon is a text."""
    assert read(text) == [("replies", [("content", text)])]


def test_a_faulty_line_is_told_and_the_rest_goes_on() -> None:
    """What is no reply is told with its file and line, in its place."""
    text = '{"text": "a"}\n{broken\n[1]\n{"n": 1}\n{"text": 5}\n{"choices": [1]}\n{"text": "z"}\n'
    missing = "no text in text, reply, output, content, response, completion; --field names another"
    assert read(text, "x.jsonl") == [
        ("x.jsonl:1", [("content", "a")]),
        "x.jsonl:2: no JSON",
        "x.jsonl:3: no JSON object",
        f"x.jsonl:4: {missing}",
        f"x.jsonl:5: {missing}",
        "x.jsonl:6: no chat completion",
        ("x.jsonl:7", [("content", "z")]),
    ]


def test_bytes_that_are_no_text_are_told() -> None:
    """A file that is no UTF-8, or a gzip that breaks off, is told with its place."""
    assert read(b"one\ntwo\n\xff") == ["replies:3: not UTF-8"]
    assert read(b"one\n\xe4\xbd") == ["replies:2: not UTF-8"]
    (broken,) = read(gzip.compress(b"text" * 100)[:20], "x.gz")
    assert isinstance(broken, str)
    assert broken.startswith("x.gz: broken gzip")


def test_a_stream_that_cannot_be_read_is_told() -> None:
    """A stream of another kind is told, and one with a broken event with its line."""
    assert read('data: {"type": 1}\n\n') == ["replies: no stream of chat completion chunks"]
    (broken,) = read(': x\n\ndata: {"choices": []}\n\ndata: {no\n\n', "x.sse")
    assert isinstance(broken, str)
    assert broken.startswith("x.sse:5: ")


def test_a_stream_is_read_to_its_end_and_no_further() -> None:
    """What follows the sentinel, or an error inside the stream, belongs to no reply."""
    late = b'data: {"choices":[{"index":0,"delta":{"content":"late"}}]}\n\n'
    for end in (b"", fault(502, "it broke")):
        stream = Reply("so far").stream().replace(b"data: [DONE]\n\n", b"") + end
        stream += b"data: [DONE]\n\n" + late
        assert carried(read(stream)) == [("content", "so far")]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line, a document or an event beyond the bound is told and not kept."""
    monkeypatch.setattr(saved, "MAX_JSON_BYTES", 1000)
    monkeypatch.setattr(saved, "_CHUNK_BYTES", 64)
    long = json.dumps({"text": "a" * 2000})
    assert read(f'{{"text": "b"}}\n{long}', "x.jsonl") == [
        ("x.jsonl:1", [("content", "b")]),
        "x.jsonl:2: a line of more than 1000 bytes",
    ]
    assert read(f"[\n{long}]", "x") == ["x: a JSON text of more than 1000 bytes"]
    assert read(f"data: {long}\n\n", "x.sse") == ["x.sse:1: an event of more than 1000 bytes"]
