"""The keys that generations were made with, in memory only; everything else sees fingerprints.

A price can be read only with the key that made the generation, so a key has to outlive its
request; but a key that is written down is a key that leaks. So a key stays in this object, and the
ledger, the log and the metrics are given its fingerprint: the first 64 bits of a BLAKE2b digest.
The digest is not salted, because the same key must have the same fingerprint after a restart and
in every replica. Blind spot: a key that can be guessed can be confirmed from its fingerprint. The
keys of an API are random and long; one that a person made up for a private server may not be.
"""

import hashlib
from collections import OrderedDict

KEYS_HELD = 1_000
"""Keys remembered at once, the least recently used forgotten first: more callers than one instance
serves in the hour that an entry is looked up for, and few enough to name in one query. An entry
whose key was forgotten waits until the key is seen again."""


def fingerprint(key: str) -> str:
    """Return what stands for a key everywhere outside memory: 16 hexadecimal digits."""
    return hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


class Keys:
    """The keys seen since the launch, and which of them may be used for a look-up now."""

    def __init__(self, operator_key: str | None) -> None:
        """Args: operator_key: the operator's own, which is never forgotten."""
        self._operator: dict[str, str] = {}
        self._seen: OrderedDict[str, str] = OrderedDict()
        self._refused: set[str] = set()
        self._paused_until_s: dict[str, float] = {}
        self.use(operator_key)

    def use(self, operator_key: str | None) -> None:
        """Hold the operator's key; one that it replaces still tells what it owes."""
        if operator_key is not None:
            self._operator[fingerprint(operator_key)] = operator_key

    def remember(self, key: str) -> str:
        """Hold a key that has just been used; return its fingerprint."""
        mark = fingerprint(key)
        if mark in self._operator:
            return mark
        self._seen[mark] = key
        self._seen.move_to_end(mark)
        if len(self._seen) > KEYS_HELD:
            forgotten, _ = self._seen.popitem(last=False)
            self._refused.discard(forgotten)
            self._paused_until_s.pop(forgotten, None)
        return mark

    def key_of(self, mark: str) -> str | None:
        """Return the key of a fingerprint, None where it is not, or no longer, remembered."""
        return self._operator.get(mark) or self._seen.get(mark)

    def refuse(self, mark: str) -> None:
        """Use this key for no further look-up: the upstream does not take it."""
        self._refused.add(mark)

    def pause(self, mark: str, until_s: float) -> None:
        """Use this key for no look-up before ``until_s`` (UNIX time): the upstream said so."""
        self._paused_until_s[mark] = max(until_s, self._paused_until_s.get(mark, 0.0))

    def refused(self) -> list[str]:
        """Return the fingerprints of the keys that the upstream does not take."""
        return sorted(self._refused)

    def usable(self, now_s: float) -> list[str]:
        """Return the fingerprints of the keys that may be used for a look-up now."""
        held = self._operator.keys() | self._seen.keys()
        return sorted(
            mark for mark in held - self._refused if self._paused_until_s.get(mark, 0.0) <= now_s
        )
