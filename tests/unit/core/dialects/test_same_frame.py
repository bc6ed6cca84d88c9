"""Events that repeat the frame of the one before."""

import json
from typing import Any

from loopguard.core import json_text
from loopguard.core.dialects.same_frame import SameFrame
from loopguard.core.events import Finish, Parsed, TextDelta


class CountingReader:
    """Reads events of a wire of its own, and counts them."""

    def __init__(self) -> None:
        self.count = 0

    def read(self, data: bytes) -> Parsed:
        self.count += 1
        chunk = json_text.loads(data)
        return Parsed([TextDelta(chunk["text"], chunk.get("choice", 0))], chunk)


def line(text: str, **more: Any) -> bytes:
    return json.dumps({"text": text} | more).encode()


def test_a_frame_is_read_twice_and_tried_once() -> None:
    """From the third event of one frame on, its text alone is read."""
    reader = CountingReader()
    frames = SameFrame("text", reader.read)
    parsed = [frames.parse(line(text, choice=3)) for text in ("one", "two", 'thr"ee', "é")]
    assert reader.count == 3  # two events, and one with a text of ours
    assert [one.events for one in parsed] == [
        [TextDelta(text, 3)] for text in ("one", "two", 'thr"ee', "é")
    ]
    assert [one.only_text for one in parsed] == ["", "", 'thr"ee', "é"]
    assert [one.chunk is None for one in parsed] == [False, False, True, True]


def test_another_frame_is_read_by_the_parser() -> None:
    """An event of another frame is read whole, and the known frame is forgotten."""
    reader = CountingReader()
    frames = SameFrame("text", reader.read)
    for text in "abc":
        frames.parse(line(text))
    for choice in (1, 0):
        assert frames.parse(line("d", choice=choice)).only_text == ""
    assert reader.count == 5


def test_a_string_that_orjson_refuses_is_read_by_the_parser() -> None:
    """Half of an emoji in the known frame is read as the parser reads it."""
    frames = SameFrame("text", CountingReader().read)
    parsed = [frames.parse(line(text)) for text in ("a", "b", "\ud83d")]
    assert parsed[-1] == Parsed([TextDelta("\ud83d")], {"text": "\ud83d"})


def test_a_text_elsewhere_is_no_frame() -> None:
    """A field of the text's name that is not the text makes no frame, nor does an absent one."""
    for decoy in (b'{"text": "a", "text": "b"}', b'{"text" : "b"}'):
        frames = SameFrame("text", CountingReader().read)
        assert [frames.parse(decoy).only_text for _ in range(4)] == [""] * 4


def test_what_is_more_than_a_text_is_no_frame() -> None:
    """An event that says more than one text makes no frame."""
    frames = SameFrame("text", lambda _: Parsed([TextDelta("a"), Finish("stop")], {}))
    assert [frames.parse(line("a")).only_text for _ in range(4)] == [""] * 4
