"""The calls rule: one reply calls a tool again and again, with the same arguments.

Theory. Nobody gains from asking a tool the same thing twice in one reply, since nothing happens in
between: the calls of a reply are answered together. A loop of empty calls has no text that another
rule could read. Two calls are the same where their tools have one name and their arguments are the
same text. A call is whole when the next one begins; the rule trips there, once more than
``max_identical_calls`` whole calls in a row were the same.

Blind spots: calls that take turns (a b a b), and arguments that count up or spell the same JSON
another way; the text of long arguments is what the other rules read. The last call of a reply is
not judged. Where a provider sends the arguments of several calls in turns, a call is taken for
whole too early; a late piece of it shows that, and the count begins anew.
"""

from xxhash import xxh3_64


class CallsRule:
    """Watches the tool calls of one choice. Its memory is two hashes.

    Args:
        max_identical_calls: as many identical calls in a row pass.

    Attributes:
        run: identical whole calls in a row so far.
    """

    __slots__ = ("_last", "_max", "_open", "_writing", "run")

    def __init__(self, max_identical_calls: int) -> None:
        self._max = max_identical_calls
        self._last: int | None = None
        self._open: int | None = None
        self._writing = xxh3_64()
        self.run = 0

    def begin(self, name: str, call: int) -> bool:
        """A call begins, and the one before it is whole.

        Args:
            name: of the tool.
            call: the call's index.

        Returns:
            Whether the call that is whole was one too many.
        """
        if self._open is not None:
            whole = self._writing.intdigest()
            self.run = self.run + 1 if whole == self._last else 1
            self._last = whole
        self._open = call
        # A name holds no such character, so that name and arguments cannot be taken for each other.
        self._writing = xxh3_64(f"{name}\0".encode("utf-8", "surrogatepass"))
        return self.run > self._max

    def feed(self, text: str, call: int) -> None:
        """Take the next piece of a call's arguments."""
        if call == self._open:
            self._writing.update(text.encode("utf-8", "surrogatepass"))
        else:
            self._last = None
            self.run = 0
