"""What may stand in a line."""

import pytest

from loopguard.core.text import one_line


@pytest.mark.parametrize("text", ["plain", "", "ü — 中文 😀", r"C:\new", "`name`: x = 'y'"])
def test_keeps(text):
    """Printable text of any script stays as it is."""
    assert one_line(text) == text


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a\r\nb", r"a\r\nb"),
        ("a\x0b\x0c\x1c\x85\u2028\u2029b", r"a\x0b\x0c\x1c\x85\u2028\u2029b"),
        ("\x1b[2J\x9b2J\x7f\0", r"\x1b[2J\x9b2J\x7f\x00"),
        ("\u202eabc\u200b", r"\u202eabc\u200b"),
        ("\udcff", r"\udcff"),
    ],
)
def test_escapes(text, line):
    """Whatever ends a line, steers a terminal or cannot be written is escaped."""
    assert one_line(text) == line
    assert len(line.splitlines()) == 1
