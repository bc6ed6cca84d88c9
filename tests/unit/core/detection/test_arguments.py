"""Arguments are judged as the text that their JSON stands for."""

import json

import pytest

from loopguard.core.detection.arguments import ArgumentsText


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        'a "quoted" word\nand a line\twith a tab',
        "back\\slash \\n that is no newline",
        "control \x01 and é and 快 and 😀",
        "\b\f\r/",
    ],
)
def test_escapes_become_their_characters(text: str) -> None:
    """Whatever the split, the text inside the quotes is what the model wrote."""
    escaped = json.dumps({"input": text})
    plain = f'{{"input": "{text}"}}'
    for size in (1, 2, 3, 5, 7, len(escaped)):
        unescaped = ArgumentsText()
        pieces = [unescaped.feed(escaped[at : at + size]) for at in range(0, len(escaped), size)]
        assert "".join(pieces).encode("utf-16", "surrogatepass").decode("utf-16") == plain


@pytest.mark.parametrize("text", ["\\x41", "\\u12G4", "\\ ", "\\u", "\\u00zz\\n"])
def test_what_is_no_escape_stays_as_it_is(text: str) -> None:
    """A backslash that begins no escape is a character like any other."""
    unescaped = ArgumentsText()
    shown = "".join(map(unescaped.feed, text)) + unescaped.feed(" ")
    assert shown == text.replace("\\n", "\n") + " "


def test_an_unfinished_escape_waits_for_its_end() -> None:
    """Half an escape is no text yet."""
    unescaped = ArgumentsText()
    assert unescaped.feed("a\\") == "a"
    assert unescaped.feed("u00") == ""
    assert unescaped.feed("e9b") == "éb"
