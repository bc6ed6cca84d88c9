"""What becomes of a reply while it arrives: sent on, or kept until it has completed.

`LiveRelay` sends the upstream's bytes on as they came. Nothing leaves before the first delta that
carries something, nor while the reply is suspected of looping; so what trips early is retried
invisibly. `HeldRelay` keeps the whole reply; a caller that asked for a stream gets it in few
events, one that asked for none gets the object.

Each attempt has a relay of its own, so nothing of a discarded attempt can leave with the next.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from aiohttp import web

from loopguard.core import json_text, sse
from loopguard.core.detection.detector import Detector
from loopguard.core.dialects import Dialect
from loopguard.core.events import Parsed
from loopguard.core.plan import Plan
from loopguard.proxy.caller import Caller

# Pieces of a held reply are joined to writes of this size: one system call carries many events,
# and a slow caller's backlog stays small.
_WRITE_BYTES = 65_536

ResponseHeaders: TypeAlias = Iterable[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Figures:
    """What an exchange has cost so far, as its response tells it."""

    attempts: int
    loop_aborts: int = 0
    loop_abort_words: int = 0
    loop_abort_chars: int = 0

    def _named(self) -> Iterable[tuple[str, int]]:
        yield "Attempts", self.attempts
        if self.loop_aborts:
            yield "Loop-Aborts", self.loop_aborts
            yield "Loop-Abort-Words", self.loop_abort_words
            yield "Loop-Abort-Chars", self.loop_abort_chars

    def headers(self) -> list[tuple[str, str]]:
        """The response headers."""
        return [(f"X-Loopguard-{name}", str(value)) for name, value in self._named()]

    def comment(self) -> bytes:
        """The comment that says the same inside a stream; none where there is nothing to tell."""
        if self.attempts == 1 and not self.loop_aborts:
            return b""
        said = " ".join(f"{name.lower()}={value}" for name, value in self._named())
        return sse.comment(f"loopguard {said}")


class LiveRelay:
    """Sends a reply on as it arrives.

    Args:
        caller: whom to.
        plan: what was asked for.
        figures: of the attempts before this one.
        max_held_bytes: bound of what is held back; past it the bytes leave.

    Attributes:
        committed: whether a byte of the reply has left.
        last: the last chunk that has left.
        finished: the choices whose finish has left.
    """

    def __init__(self, caller: Caller, plan: Plan, figures: Figures, max_held_bytes: int) -> None:
        self._caller = caller
        self._usage_asked = plan.usage_asked
        self._figures = figures
        self._max_held_bytes = max_held_bytes
        self._headers: ResponseHeaders = ()
        self._waiting: list[bytes] = []
        self._newest: dict[str, Any] | None = None
        self._finishing: set[int] = set()
        self._carries = False
        self.held_bytes = 0
        self.committed = False
        self.last: dict[str, Any] | None = None
        self.finished: set[int] = set()

    def begin(self, headers: ResponseHeaders) -> None:
        """Take the headers of the upstream's response."""
        self._headers = [*headers, *self._figures.headers()]

    def skip(self, raw: bytes) -> None:
        """Take a block without data: a comment."""
        self._wait(raw)

    def finish(self, choice: int) -> None:
        """Note that the event which is taken next has the finish of a choice."""
        self._finishing.add(choice)

    def take(self, block: sse.Block, parsed: Parsed, *, carries: bool) -> None:
        """Take an event, which may carry something of the reply."""
        if parsed.usage_only and not self._usage_asked:
            return
        self._carries = self._carries or carries
        self._newest = parsed.chunk or self._newest
        self._wait(block.raw)

    def take_run(self, raw: bytes, text: str, times: int) -> None:  # noqa: ARG002
        """Take events that carry text alone."""
        self._carries = True
        self._wait(raw)

    def _wait(self, raw: bytes) -> None:
        self._waiting.append(raw)
        self.held_bytes += len(raw)

    def flush(self, detector: Detector) -> bool:
        """Send on what waits, unless the reply is suspected or nothing of it is there.

        Returns:
            Whether more may be read; else what waits cannot leave at once, and `catch_up` is next.
        """
        if not self._waiting:
            return True
        early = not self._carries or detector.suspected
        if early and self.held_bytes <= self._max_held_bytes:
            return True
        if not self.committed:
            return False
        waiting = self._waiting
        data = waiting[0] if len(waiting) == 1 else b"".join(waiting)
        if not self._caller.send(data):
            return False
        self._leave()
        return True

    async def catch_up(self) -> None:
        """Send on what waits, as fast as the caller takes it."""
        await self._caller.write(self._rest(), self._headers)

    def _rest(self) -> bytes:
        """Let what waits leave."""
        first = [] if self.committed else [self._figures.comment()]
        data = b"".join(first + self._waiting)
        self._leave()
        return data

    def _leave(self) -> None:
        """What waits leaves now."""
        self._waiting.clear()
        self.held_bytes = 0
        self.committed = True
        self.last = self._newest
        self.finished |= self._finishing

    @property
    def overfull(self) -> bool:
        """Never: what waits is sent on instead."""
        return False

    async def deliver(self) -> web.StreamResponse:
        """Send the rest and end the stream."""
        return await self._caller.close(self._rest(), self._headers)


class HeldRelay:
    """Keeps a reply until it has completed.

    Args:
        caller: whom it is for.
        plan: what was asked for.
        figures: of the attempts before this one.
        max_held_bytes: bound of what is kept.
        dialect: keeps and assembles.
    """

    committed = False
    last = None
    finished: frozenset[int] = frozenset()

    def __init__(
        self, caller: Caller, plan: Plan, figures: Figures, max_held_bytes: int, dialect: Dialect
    ) -> None:
        self._caller = caller
        self._stream = plan.stream
        self._usage_wanted = plan.usage_asked or not plan.stream
        self._figures = figures
        self._max_held_bytes = max_held_bytes
        self._headers: ResponseHeaders = ()
        self._held = dialect.Held()

    def begin(self, headers: ResponseHeaders) -> None:
        """Take the headers of the upstream's response."""
        self._headers = [*headers, *self._figures.headers()]

    def skip(self, raw: bytes) -> None:
        """Comments are not kept."""

    def finish(self, choice: int) -> None:
        """The event itself is kept."""

    def take(self, block: sse.Block, parsed: Parsed, *, carries: bool) -> None:  # noqa: ARG002
        """Take an event."""
        if self._usage_wanted or not parsed.usage_only:
            self._held.add(block, parsed)

    def take_run(self, raw: bytes, text: str, times: int) -> None:
        """Take events that carry text alone, each so many times."""
        self._held.extend(raw, text, times)

    def flush(self, detector: Detector) -> bool:  # noqa: ARG002
        """Nothing leaves yet."""
        return True

    async def catch_up(self) -> None:
        """Nothing is behind."""

    @property
    def held_bytes(self) -> int:
        """What is kept."""
        return self._held.size_bytes

    @property
    def overfull(self) -> bool:
        """Whether more is kept than may be."""
        return self.held_bytes > self._max_held_bytes

    async def deliver(self) -> web.StreamResponse:
        """Give the caller the reply."""
        if not self._stream:
            body = json_text.dumps(self._held.whole())
            response = web.Response(body=body, content_type="application/json")
            for name, value in self._headers:
                if name.lower() != "content-type":
                    response.headers.add(name, value)
            return response
        batch = bytearray(self._figures.comment())
        for event in self._held.stream():
            batch += event
            if len(batch) >= _WRITE_BYTES:
                await self._caller.write(bytes(batch), self._headers)
                batch.clear()
        return await self._caller.close(bytes(batch), self._headers)


Relay: TypeAlias = LiveRelay | HeldRelay
