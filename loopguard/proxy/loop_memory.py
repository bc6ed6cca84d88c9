"""What has looped lately, so that a caller who asks again at once does not pay again.

Some callers ask again whatever they are told, and a cut can turn one long loop into dozens of short
ones (clients.md). A request may cost as many looping replies as one exchange may, within the
memory's time; then it is refused with the error that it had, before any upstream request.

Requests are known by a digest of their canonical body, their path's dialect and the caller's key:
asking again for the same reply, streamed or whole, is the same request.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from loopguard.errors import ModelResponseLoop

# Some 300 bytes each: 3 MB at the most. Only requests that looped stand here, and for seconds.
_MAX_REQUESTS = 10_000


@dataclass(slots=True)
class _Looped:
    error: ModelResponseLoop
    replies: int
    ends_at: float


def digest(dialect: str, canonical_body: bytes, credential: str | None) -> bytes:
    """The name under which a request is remembered."""
    hashed = hashlib.blake2b(canonical_body, digest_size=16)
    hashed.update(f"\0{dialect}\0{credential or ''}".encode(errors="surrogateescape"))
    return hashed.digest()


class LoopMemory:
    """Remembers looping requests.

    Args:
        ttl_s: seconds that a request is remembered for; 0 remembers nothing.
        clock: seconds, monotonic.
    """

    def __init__(self, ttl_s: float, clock: Callable[[], float]) -> None:
        self._ttl_s = ttl_s
        self._clock = clock
        self._looped: OrderedDict[bytes, _Looped] = OrderedDict()

    def __len__(self) -> int:
        self._forget()
        return len(self._looped)

    def replies(self, request: bytes) -> int:
        """Looping replies that the request has cost."""
        self._forget()
        known = self._looped.get(request)
        return 0 if known is None else known.replies

    def refusal(self, request: bytes) -> ModelResponseLoop:
        """The error that a remembered request had, with the time that is left of it.

        Raises:
            KeyError: the request is not remembered.
        """
        known = self._looped[request]
        return ModelResponseLoop(
            known.error.message,
            retry_after_s=known.ends_at - self._clock(),
            details=known.error.details,
        )

    def remember(self, request: bytes, error: ModelResponseLoop, replies: int) -> None:
        """Add looping replies to a request and begin its time anew."""
        if not self._ttl_s:
            return
        replies += self.replies(request)
        self._looped[request] = _Looped(error, replies, self._clock() + self._ttl_s)
        self._looped.move_to_end(request)
        if len(self._looped) > _MAX_REQUESTS:
            self._looped.popitem(last=False)

    def _forget(self) -> None:
        now = self._clock()
        while self._looped:
            request, oldest = next(iter(self._looped.items()))
            if oldest.ends_at > now:
                return
            del self._looped[request]
