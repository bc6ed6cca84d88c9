"""Whether two looping replies are the same text.

Where two attempts wrote the same text, a third will: the endpoint is deterministic, and asking it
again buys the loop again. But a text that is nothing but its loop is the same in every attempt
that loops, however freely the model draws its words. So a fingerprint is only given to a reply
that began with something else: whose first thousand bytes do not compress to nearly nothing.

Blind spot: a provider that repeats a good beginning by chance; where one word in three could have
been another, fifty words are not written twice.
"""

import zlib

from xxhash import xxh3_128

_OPENING_BYTES = 1024
"""What is kept of the text; a loop that begins later has shown a lead-in by then."""

_MIN_SAID_BYTES = 200
"""What some fifty words of prose compress to; a long sentence, however often, takes 150."""


class Fingerprint:
    """Takes in the text of one channel."""

    __slots__ = ("_hash", "_opening")

    def __init__(self) -> None:
        self._opening = b""
        self._hash = xxh3_128()

    def feed(self, text: str) -> None:
        """Read on."""
        encoded = text.encode(errors="surrogatepass")
        if len(self._opening) < _OPENING_BYTES:
            self._opening += encoded[:_OPENING_BYTES]
        self._hash.update(encoded)

    def digest(self) -> bytes | None:
        """The text's fingerprint, 16 bytes; None where the text says too little to have one."""
        said = len(zlib.compress(self._opening[:_OPENING_BYTES]))
        return self._hash.digest() if said >= _MIN_SAID_BYTES else None
