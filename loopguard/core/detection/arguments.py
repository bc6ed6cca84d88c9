r"""The text that the JSON of a tool call's arguments stands for.

Arguments arrive as JSON text split anywhere, so that a newline is the two characters ``\n`` and
half of an escape may come first. The rules judge what the model wrote: every escape is replaced by
its character, all else, keys and braces included, stays. What is no valid escape stays as it is.
"""

import re

_escape = re.compile(r'\\(?:u([0-9a-fA-F]{4})|(["\\/bfnrt]))')
_unfinished = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_MEANING = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class ArgumentsText:
    """Unescapes one call's arguments, whatever pieces they come in.

    A pair of surrogate escapes comes out as two lone surrogates, one for each escape.
    """

    __slots__ = ("_pending",)

    def __init__(self) -> None:
        self._pending = ""

    def feed(self, text: str) -> str:
        """Take the next piece and return the text it completes, an unfinished escape held back."""
        text = self._pending + text
        self._pending = ""
        if "\\" not in text:
            return text
        pieces: list[str] = []
        at = 0
        while (escape := text.find("\\", at)) >= 0:
            pieces.append(text[at:escape])
            match = _escape.match(text, escape)
            if match is not None:
                code, letter = match.groups()
                pieces.append(chr(int(code, 16)) if code else _MEANING.get(letter, letter))
                at = match.end()
            elif _unfinished.match(text, escape):
                self._pending = text[escape:]
                return "".join(pieces)
            else:
                pieces.append("\\")
                at = escape + 1
        pieces.append(text[at:])
        return "".join(pieces)
