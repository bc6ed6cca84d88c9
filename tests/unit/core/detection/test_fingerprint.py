"""Whether two looping replies are the same text."""

from loopguard.core.detection.fingerprint import Fingerprint

LEAD_IN = (
    "The harbour was quiet when the first boats came home; gulls argued over the nets, somebody "
    "sang, and the smell of diesel hung above the quay. Nobody had expected the letter, which lay "
    "unopened on the kitchen table between yesterday's bread and a jar of plum jam. Inside, "
    "one page asked whether the lighthouse was for sale. "
)


def fingerprint(*pieces: str) -> bytes | None:
    taken = Fingerprint()
    for piece in pieces:
        taken.feed(piece)
    return taken.digest()


def test_same_text_however_cut() -> None:
    """The same text has the same fingerprint, whatever pieces it came in."""
    text = LEAD_IN + "void 0; " * 500
    assert fingerprint(text) == fingerprint(*text) is not None


def test_other_text() -> None:
    """A text that differs in its last character has another fingerprint."""
    text = LEAD_IN + "void 0; " * 500
    assert fingerprint(text) != fingerprint(text[:-1] + ".")


def test_nothing_but_a_loop_has_none() -> None:
    """A text that is its loop from the first word on has no fingerprint, nor has an empty one."""
    assert fingerprint("void 0; " * 500) is None
    assert fingerprint("The quick brown fox jumps over the lazy dog and runs on. " * 50) is None
    assert fingerprint() is None


def test_lone_surrogates() -> None:
    """Half of a surrogate pair is text like any other."""
    assert fingerprint(LEAD_IN, "\ud83d") != fingerprint(LEAD_IN, "\ude00")
