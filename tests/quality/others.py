"""What others do against loops, re-typed from their published descriptions.

Each takes a whole reply and says at which character it would have acted, None where never.
"""

import re
import zlib
from collections import defaultdict, deque

CHECK_CHARS = 16_000
CHUNK_CHARS, CHUNK_REPEATS, CHUNK_DISTANCE = 50, 10, 250
SAME_DELTAS = 100
ZLIB_WINDOW, ZLIB_STEP, ZLIB_RATIO = 4_000, 1_000, 10


def periodic(text: str) -> int | None:
    """An agent's stream watch: every 16,000 characters, are nine tenths of the last 16,000 a copy
    of what stands one period before?"""
    for end in range(CHECK_CHARS, len(text) + 1, CHECK_CHARS):
        window = text[end - CHECK_CHARS : end]
        tail = window[-64:]
        found = window.rfind(tail, 0, -1)
        if found < CHECK_CHARS // 2:
            continue
        period = CHECK_CHARS - 64 - found
        pairs = zip(window, window[period:], strict=False)
        if sum(a == b for a, b in pairs) >= 0.9 * (CHECK_CHARS - period):
            return end
    return None


def chanting(text: str) -> int | None:
    """A command line's check: a chunk of 50 characters ten times, on average within 250."""
    places: dict[str, deque[int]] = defaultdict(lambda: deque(maxlen=CHUNK_REPEATS))
    for start in range(len(text) - CHUNK_CHARS + 1):
        seen = places[text[start : start + CHUNK_CHARS]]
        seen.append(start)
        if len(seen) == CHUNK_REPEATS and start - seen[0] <= CHUNK_DISTANCE * (CHUNK_REPEATS - 1):
            return start + CHUNK_CHARS
    return None


def same_deltas(text: str) -> int | None:
    """A proxy's check: 100 equal deltas in a row, at about four characters a delta."""
    last, run = "", 0
    for match in re.finditer(r"\s?\w{1,4}|\s?[^\w\s]{1,4}|\s", text):
        run = run + 1 if match.group() == last else 1
        last = match.group()
        if run == SAME_DELTAS:
            return match.end()
    return None


def compressible(text: str) -> int | None:
    """The ratio of a compressor: the last 4,000 characters shrink to less than a tenth."""
    for end in range(ZLIB_WINDOW, len(text) + 1, ZLIB_STEP):
        window = text[end - ZLIB_WINDOW : end].encode("utf-8", "replace")
        if len(window) > ZLIB_RATIO * len(zlib.compress(window)):
            return end
    return None


OTHERS = {
    "16,000-character periodicity": periodic,
    "50 characters 10 times in 250": chanting,
    "100 equal deltas": same_deltas,
    "zlib, 4,000 to under a tenth": compressible,
}
