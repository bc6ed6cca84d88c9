r"""What a word is, and how a stream of text becomes words.

A word is a whitespace-separated run of characters, terminated by whitespace and never counted
before it is: an identifier that arrives in three pieces is one word, and a reply's final partial
word is none. A run that reaches ``WORD_CAP_CHARS`` is flushed as a word there and then, so that the
memory is bounded and text without whitespace has words at all. The cap counts characters, not
bytes. (The loop-detection document, "What a word is".)

Whitespace is what ``str.isspace`` says, which is also what ``str.split`` and ``\s`` use: every
path below therefore cuts the same words.
"""

import re

WORD_CAP_CHARS = 128
"""The document's: above any identifier, URL or base64 line that a model writes as one run."""

_capped = re.compile(rf"\S{{1,{WORD_CAP_CHARS}}}")


class WordSplitter:
    """Cuts a stream of text into words, whatever pieces it comes in.

    Attributes:
        pending: the run that has not been terminated yet, shorter than the cap.
        count: words terminated so far.
    """

    __slots__ = ("count", "pending")

    def __init__(self) -> None:
        self.pending = ""
        self.count = 0

    def feed(self, text: str) -> list[str]:
        """Take the next piece of the text and return the words that it terminates."""
        run = self.pending + text
        words = run.split()
        if len(run) >= WORD_CAP_CHARS and words and len(max(words, key=len)) > WORD_CAP_CHARS:
            words = _capped.findall(run)
        if words and len(words[-1]) < WORD_CAP_CHARS and not run[-1].isspace():
            self.pending = words.pop()
        else:
            self.pending = ""
        self.count += len(words)
        return words


def chars_until(pending: str, text: str, words: int) -> int:
    """How many characters of ``text`` terminate the given number of words.

    Args:
        pending: the run that was pending before the text.
        text: a piece that terminates at least so many words.
        words: at least 1.
    """
    found = _capped.finditer(pending + text)
    for _ in range(words - 1):
        next(found)
    start, end = next(found).span()
    flushed = end - start == WORD_CAP_CHARS
    return end + (0 if flushed else 1) - len(pending)
