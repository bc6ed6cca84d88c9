"""The exchanges in flight, once a second, for whoever looks.

A second's sights are taken once for all pages that are open, and not at all while none is. A page
that takes what it is sent too slowly misses sights and gets the newest.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeAlias

from loopguard.core import json_text
from loopguard.proxy.sight import Sight, Sights

Json: TypeAlias = dict[str, Any]

_log = logging.getLogger("loopguard")

INTERVAL_S = 1.0
"""As often as a person can follow."""


def told(sights: Sights) -> Json:
    """What a page is told of the exchanges in flight."""
    return {
        "in_flight": sights.in_flight,
        "suspected": sights.suspected,
        "exchanges": [_row(sight) for sight in sights.shown],
        "newest_loop": sights.newest_loop,
    }


def _row(sight: Sight) -> Json:
    return {
        "exchange": sight.exchange,
        "model": sight.model,
        "profile": sight.profile,
        "dialect": sight.dialect,
        "run": sight.run,
        "attempt": sight.attempt,
        "elapsed_s": round(sight.elapsed_s, 1),
        "state": sight.state,
        "chars": sight.chars,
        "levels": [
            {"rule": rule, "now": round(level.now, 1), "floor": level.floor}
            for rule, level in sight.levels.items()
        ],
    }


class Now:
    """Takes the sights while somebody follows them.

    Args:
        look: takes those of every worker.
    """

    def __init__(self, look: Callable[[], Awaitable[Sights]]) -> None:
        self._look = look
        self._followers = 0
        self._taking: asyncio.Task[None] | None = None
        self._taken = asyncio.Event()
        self._event = b""
        self._closed = False

    @property
    def followers(self) -> int:
        """How many pages are open."""
        return self._followers

    async def follow(self) -> AsyncGenerator[bytes, None]:
        """Yield a server-sent event each second, the first at once."""
        self._followers += 1
        if self._taking is None:
            self._taking = asyncio.create_task(self._take(), name="console")
        try:
            if self._event:
                yield self._event
            while True:
                await self._taken.wait()
                if self._closed:
                    return
                yield self._event
        finally:
            self._followers -= 1
            if not self._followers:
                self._rest()

    def close(self) -> None:
        """End every stream: the process is ending."""
        self._closed = True
        self._taken.set()
        self._rest()

    def _rest(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
        self._taking, self._event = None, b""

    async def _take(self) -> None:
        while True:
            try:
                self._event = b"data: " + json_text.dumps(told(await self._look())) + b"\n\n"
            except Exception:  # noqa: BLE001 - whatever it is, the next second may be better
                _log.warning("the exchanges in flight cannot be looked at", exc_info=True)
            else:
                taken, self._taken = self._taken, asyncio.Event()
                taken.set()
            await asyncio.sleep(INTERVAL_S)
