"""The time limits of one attempt, or of one wait between two.

One timer serves all of them. It is armed for the limit that is due first; when it fires, it looks
whether that limit has moved meanwhile and arms itself for what is due then. So a delta that
restarts the idle clock costs one assignment, and no timer is touched on the way.

A limit that is reached ends the body of ``async with clocks`` with TimeoutError; ``expired`` says
which it was.
"""

import asyncio
from types import TracebackType
from typing import Self

from loopguard.core.retry import Drained, Stalled, TimedOut


class Clocks:
    """Watches over the body of an ``async with``.

    Args:
        exchange_ends_at: time of the event loop at which the exchange is over.
        exchange_timeout_s: its whole length.
        call_timeout_s: seconds for the body, None for no limit of its own.
        first_delta_timeout_s: seconds until the first delta that carries something.
        stream_idle_s: seconds between two such deltas.
    """

    def __init__(
        self,
        exchange_ends_at: float,
        exchange_timeout_s: float,
        *,
        call_timeout_s: float | None = None,
        first_delta_timeout_s: float | None = None,
        stream_idle_s: float | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._scope = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None
        self._silence_s = first_delta_timeout_s
        self._stream_idle_s = stream_idle_s
        self._last_delta_at = self._loop.time()
        self._ends_at = exchange_ends_at
        self._timed_out = TimedOut("exchange", exchange_timeout_s)
        if call_timeout_s is not None and self._last_delta_at + call_timeout_s < exchange_ends_at:
            self._ends_at = self._last_delta_at + call_timeout_s
            self._timed_out = TimedOut("attempt", call_timeout_s)
        self._paused_at: float | None = None
        self._running = False
        self.expired: Stalled | TimedOut | Drained | None = None

    async def __aenter__(self) -> Self:
        await self._scope.__aenter__()
        self._running = True
        if self.expired is None:
            self._look()
        else:
            self._end()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._running = False
        if self._timer is not None:
            self._timer.cancel()
        await self._scope.__aexit__(kind, error, traceback)

    def progress(self) -> None:
        """Restart the idle clock: a delta that carries something has come."""
        self._last_delta_at = self._loop.time()
        if self._silence_s != self._stream_idle_s:
            # The first delta: from here on another limit holds, which may be due sooner.
            self._silence_s = self._stream_idle_s
            if self._timer is not None:
                self._timer.cancel()
            self._look()

    def pause(self) -> None:
        """Stop the idle clock: what the caller does not take is not the upstream's stall."""
        self._paused_at = self._loop.time()

    def resume(self) -> None:
        """Let the idle clock go on from where it stood."""
        self._last_delta_at += self._paused_s(self._loop.time())
        self._paused_at = None

    def _paused_s(self, now: float) -> float:
        return 0.0 if self._paused_at is None else now - self._paused_at

    def drain(self) -> None:
        """End the body, now or as soon as it begins: this process cannot wait any longer."""
        self._expire(Drained())

    def _expire(self, outcome: Stalled | TimedOut | Drained) -> None:
        if self.expired is None:
            self.expired = outcome
            if self._running:
                self._end()

    def _end(self) -> None:
        self._scope.reschedule(self._loop.time())

    def _look(self) -> None:
        """End the body if a limit is reached, else come back when the next one is due."""
        now = self._loop.time()
        due_at, stalled = self._ends_at, None
        if self._silence_s is not None:
            stalls_at = self._last_delta_at + self._paused_s(now) + self._silence_s
            if stalls_at < due_at:
                due_at, stalled = stalls_at, self._silence_s
        if due_at > now:
            self._timer = self._loop.call_at(due_at, self._look)
        elif stalled is None:
            self._expire(self._timed_out)
        else:
            self._expire(Stalled(stalled))
