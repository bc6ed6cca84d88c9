"""A stream that is read by the frame of its events."""

import json
from typing import Any

import pytest

from loopguard.core import json_text, sse
from loopguard.core.dialects.reader import Reader
from loopguard.core.events import Finish, Parsed, Place, Run, TextDelta

BOUND_BYTES = 100_000


class CountingParser:
    """Reads events of a wire of its own, and counts them."""

    def __init__(self) -> None:
        self.count = 0

    def parse(self, data: bytes) -> Parsed:
        self.count += 1
        chunk = json_text.loads(data)
        return Parsed([TextDelta(chunk["text"], chunk.get("choice", 0))], chunk)


def event(text: str, name: bytes = b"", **more: Any) -> bytes:
    return sse.encode(json.dumps({"text": text} | more).encode(), name)


def said(parsed: Any) -> str | None:
    """The text of a run, or of an event; None of a comment."""
    if isinstance(parsed, Run):
        return f"run: {parsed.text}"
    return None if parsed[1] is None else "".join(each.text for each in parsed[1].events)


def read(reader: Reader, *chunks: bytes) -> list[str | None]:
    """What `read_lone` says of each read, and `read` where it is not read by itself."""
    said_of = []
    for chunk in chunks:
        lone = reader.read_lone(chunk)
        parsed = reader.read(chunk) if lone is None else [Run(chunk, *lone)]
        said_of += map(said, parsed)
    return said_of


def test_an_empty_text_is_in_no_run() -> None:
    """An event of the known frame whose text is empty is the parser's, and ends the run."""
    reader = Reader(CountingParser(), ["text"], BOUND_BYTES)
    stream = b"".join(map(event, ("a", "b", "c", "d", "", "e", "")))
    assert read(reader, stream) == ["a", "b", "run: cd", "", "e", ""]


@pytest.mark.parametrize("name", [b"", b"delta"])
def test_a_frame_is_read_twice_and_tried_once(name: bytes) -> None:
    """From the third event of one frame on, its text alone is read."""
    parser = CountingParser()
    reader = Reader(parser, ["text"], BOUND_BYTES)
    events = [event(text, name, choice=3) for text in ("one", "two", 'thr"ee', "é")]
    assert read(reader, *events) == ["one", "two", 'run: thr"ee', "run: é"]
    assert parser.count == 3  # two events, and one with a text of ours
    place = Place("content", 3, 1)
    assert reader.read_lone(events[0]) == ("one", place)
    assert list(reader.read(events[0])) == [Run(events[0], "one", place)]


@pytest.mark.parametrize("name", [b"", b"delta"])
def test_events_of_one_read_are_one_run(name: bytes) -> None:
    """What comes at once in the known frame is read together, to the event that is cut off."""
    reader = Reader(CountingParser(), ["text"], BOUND_BYTES)
    stream = b"".join(event(text, name) for text in "abcdefgh")
    assert read(reader, stream[:-5]) == ["a", "b", "run: cdefg"]
    assert read(reader, stream[-5:] + stream) == ["run: habcdefgh"]


def twice(text: str, again: str | None = None) -> bytes:
    return event(text, more=[{"said": text if again is None else again}])


def test_a_text_that_stands_twice_is_read_once() -> None:
    """Events that say their text twice are read by their frame, alone and together."""
    reader = Reader(CountingParser(), ["text"], BOUND_BYTES)
    lone = list(map(twice, ("a", "b", 'c"', "dé")))
    assert read(reader, *lone, b"".join(lone)) == ["a", "b", 'run: c"', "run: dé", 'run: abc"dé']
    assert reader.read_lone(lone[0]) == ("a", Place("content", 0, 2))


@pytest.mark.parametrize("other", ["ab", "b", ""])
def test_two_texts_are_not_one(other: str) -> None:
    """An event of a frame that says its text twice, but another text there, is the parser's."""
    events = [*map(twice, "abc"), twice("a", other), *map(twice, "def")]
    expected = ["a", "b", "run: c", "a", "d", "e", "run: f"]
    assert read(Reader(CountingParser(), ["text"], BOUND_BYTES), *events) == expected
    together = Reader(CountingParser(), ["text"], BOUND_BYTES)
    assert read(together, b"".join(events)) == expected


def test_a_run_ends_before_another_frame() -> None:
    """An event of another frame, and a comment, stand between two runs."""
    reader = Reader(CountingParser(), ["text"], BOUND_BYTES)
    stream = b"".join(map(event, "abc")) + sse.comment("alive") + b"".join(map(event, "de"))
    stream += event("other", choice=1) + b"".join(map(event, "fgh"))
    expected = ["a", "b", "run: c", None, "run: de", "other", "f", "g", "run: h"]
    assert read(reader, stream) == expected


def test_a_long_run_is_read_in_parts() -> None:
    """Events of one read that are many are some runs, whose bytes and texts are the read's."""
    reader = Reader(CountingParser(), ["text"], BOUND_BYTES)
    read(reader, event("a"), event("b"))
    stream = b"".join(event(str(number)) for number in range(5000))
    runs = [run for run in reader.read(stream) if isinstance(run, Run)]
    assert 1 < len(runs) < 100
    assert b"".join(run.raw for run in runs) == stream
    assert "".join(run.text for run in runs) == "".join(map(str, range(5000)))


def test_a_long_event_is_read_by_the_parser() -> None:
    """An event that is longer than one look for a run is read by itself."""
    reader = Reader(CountingParser(), ["text"], BOUND_BYTES)
    read(reader, event("a"), event("b"))
    assert read(reader, event("c" * 70_000) + event("d")) == ["c" * 70_000, "run: d"]


def test_another_frame_is_read_by_the_parser() -> None:
    """An event of another frame is read whole, and the known frame is forgotten."""
    parser = CountingParser()
    reader = Reader(parser, ["text"], BOUND_BYTES)
    read(reader, *map(event, "abc"))
    assert read(reader, event("d", choice=1), event("d", choice=0)) == ["d", "d"]
    assert parser.count == 5


def test_a_string_that_orjson_refuses_is_read_by_the_parser() -> None:
    """Half of an emoji in the known frame is read as the parser reads it."""
    reader = Reader(CountingParser(), ["text"], BOUND_BYTES)
    events = [*map(event, "abc"), event("\ud83d"), *map(event, "de")]
    assert read(reader, b"".join(events)) == ["a", "b", "c", "\ud83d", "run: de"]


@pytest.mark.parametrize(
    "texts",
    [
        [b"a\\", b',"b'],
        [b'a"', b',"b'],
        [b'a",', b"b"],
        [b'a","b', b"c"],
        [b'a","text":"b', b"c"],
    ],
)
def test_texts_are_strings_each_by_itself(texts: list[bytes]) -> None:
    """What is no string by itself is not read with its neighbour, though together they are some."""
    reader = Reader(CountingParser(), ["text"], BOUND_BYTES)
    read(reader, *map(event, "abc"))
    opening, closing = event("TEXT").split(b"TEXT")
    stream = b"".join(opening + text + closing for text in texts)
    try:
        runs = [parsed for parsed in reader.read(stream) if isinstance(parsed, Run)]
    except ValueError:
        runs = []
    assert all(run.raw == event(run.text) for run in runs)


@pytest.mark.parametrize(
    "decoy", [b'{"text": "a", "text": "b"}', b'{"text" : "b"}', b'{"x": {"text": "a"}, "text": ""}']
)
def test_a_text_elsewhere_is_no_frame(decoy: bytes) -> None:
    """A field of the text's name that is not the text makes no frame, nor does an absent one."""
    reader = Reader(CountingParser(), ["text"], BOUND_BYTES)
    assert not any(isinstance(each, Run) for each in reader.read(sse.encode(decoy) * 4))


def test_what_is_more_than_a_text_is_no_frame() -> None:
    """An event that says more than one text makes no frame, nor does one with a CR in it."""

    class TwofoldParser:
        def parse(self, _: bytes) -> Parsed:
            return Parsed([TextDelta("a"), Finish("stop")], {})

    reader = Reader(TwofoldParser(), ["text"], BOUND_BYTES)
    assert not any(isinstance(each, Run) for each in reader.read(event("a") * 4))
    reader = Reader(CountingParser(), ["text"], BOUND_BYTES)
    returned = event("a").replace(b"\n", b"\r\n")
    assert read(reader, returned * 4) == ["a"] * 4
