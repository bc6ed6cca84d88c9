"""Keys are held by fingerprint, and used only while the upstream takes them."""

import hashlib

from loopguard.billing.keys import KEYS_HELD, Keys, fingerprint


def test_fingerprint_is_stable():
    """The fingerprint of a key is the first 64 bits of its BLAKE2b digest, in hexadecimal."""
    assert (
        fingerprint("sk-or-v1-abc") == hashlib.blake2b(b"sk-or-v1-abc", digest_size=8).hexdigest()
    )


def test_fingerprint_of_any_header_value():
    """A key of bytes that are no UTF-8 has a fingerprint too."""
    assert len(fingerprint(b"sk-\xff".decode("utf-8", "surrogateescape"))) == 16


def test_remembered():
    """A key that was remembered is found by its fingerprint, and usable."""
    keys = Keys(None)
    mark = keys.remember("sk-caller")
    assert keys.key_of(mark) == "sk-caller"
    assert keys.usable(0.0) == [mark]


def test_unknown():
    """A key that was not seen is not found."""
    assert Keys(None).key_of(fingerprint("sk-caller")) is None


def test_operator_key_from_the_start():
    """The operator's own key is usable before any caller came."""
    keys = Keys("sk-operator")
    assert keys.usable(0.0) == [fingerprint("sk-operator")]
    assert keys.key_of(fingerprint("sk-operator")) == "sk-operator"


def test_bounded():
    """Of more keys than are held the least recently used are forgotten, the operator's never."""
    keys = Keys("sk-operator")
    marks = [keys.remember(f"sk-{number}") for number in range(KEYS_HELD)]
    keys.remember("sk-0")
    keys.remember("sk-one-more")
    assert keys.key_of(marks[0]) == "sk-0"
    assert keys.key_of(marks[1]) is None
    assert keys.key_of(fingerprint("sk-operator")) == "sk-operator"
    assert len(keys.usable(0.0)) == KEYS_HELD + 1


def test_refused():
    """A key that the upstream refused is not usable, and is named among the refused."""
    keys = Keys(None)
    bad, good = keys.remember("sk-bad"), keys.remember("sk-good")
    keys.refuse(bad)
    assert keys.usable(0.0) == [good]
    assert keys.refused() == [bad]


def test_paused():
    """A key that is to be left alone is usable again when the longest of its pauses is over."""
    keys = Keys(None)
    mark = keys.remember("sk-busy")
    keys.pause(mark, 20.0)
    keys.pause(mark, 10.0)
    assert keys.usable(19.9) == []
    assert keys.usable(20.0) == [mark]


def test_forgotten_starts_anew():
    """A key that was forgotten and is seen again is neither refused nor paused."""
    keys = Keys(None)
    mark = keys.remember("sk-caller")
    keys.refuse(mark)
    keys.pause(mark, 1e9)
    for number in range(KEYS_HELD):
        keys.remember(f"sk-{number}")
    keys.remember("sk-caller")
    assert mark in keys.usable(0.0)
    assert keys.refused() == []
