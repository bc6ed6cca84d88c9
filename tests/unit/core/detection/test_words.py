"""Words are what the loop-detection document says, whatever pieces the text comes in."""

import pytest

from loopguard.core.detection.words import WordSplitter, chars_until


def words_of(*pieces: str) -> list[str]:
    splitter = WordSplitter()
    return [word for piece in pieces for word in splitter.feed(piece)]


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        (["a b"], ["a"]),
        (["a b "], ["a", "b"]),
        (["iden", "ti", "fier "], ["identifier"]),
        (["  \n\n\t  "], []),
        (["\n    return\n\n"], ["return"]),
        (["x" * 127 + " "], ["x" * 127]),
        (["x" * 127], []),
        (["x" * 128], ["x" * 128]),
        (["x" * 128 + " y "], ["x" * 128, "y"]),
        (["x" * 100, "x" * 30 + " "], ["x" * 128, "xx"]),
        (["a " + "x" * 300 + " b "], ["a", "x" * 128, "x" * 128, "x" * 44, "b"]),
        (["é" * 128], ["é" * 128]),
        (["a\u00a0b\u3000c\u2028"], ["a", "b", "c"]),
    ],
)
def test_a_word_is_terminated_by_whitespace_or_by_the_cap(
    pieces: list[str], words: list[str]
) -> None:
    """A word is terminated by whitespace or by its 128th character, and not before."""
    assert words_of(*pieces) == words


def test_whitespace_is_one_thing() -> None:
    """Every character of the basic plane that str.isspace names ends a word, and no other does."""
    splitter = WordSplitter()
    for code in range(0x10000):
        text = f"{'x' * 200}{chr(code)}y "
        assert (len(splitter.feed(text)) == 3) == chr(code).isspace()


def test_the_pending_run_is_bounded() -> None:
    """However long a run is, fewer than 128 of its characters are kept."""
    splitter = WordSplitter()
    for piece in ("x" * 90, "x" * 90, "x" * 1000):
        splitter.feed(piece)
        assert len(splitter.pending) < 128
    assert splitter.count == 1180 // 128


@pytest.mark.parametrize(
    ("pending", "text", "words", "chars"),
    [
        ("", "void 0; void ", 1, 5),
        ("", "void 0; void ", 3, 13),
        ("vo", "id 0; ", 1, 3),
        ("vo", " 0; ", 1, 1),
        ("", "x" * 200, 1, 128),
        ("x" * 100, "x" * 200, 2, 156),
        ("", "  a\n\nb c", 2, 7),
    ],
)
def test_a_word_ends_at_a_character(pending: str, text: str, words: int, chars: int) -> None:
    """The character that terminates a word is its whitespace, or the 128th of a run."""
    assert chars_until(pending, text, words) == chars
