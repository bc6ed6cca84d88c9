"""What nobody waits for is done when those who wait have been served.

Callers who come in the same moment wait for each other's exchanges. What is written down of one
that has ended would be among what the others wait for, and is a seventh of its whole cost. So it
waits itself, in order, for longer than such a rush takes; whoever reads what is written has it done
first.

Blind spot: what waits when the process is killed is gone. So are the rows of exchanges, which wait
for ten times as long (`loopguard.billing.writer`); those of abandoned generations never wait here.
"""

import asyncio
from collections import deque
from collections.abc import Callable

_DELAY_S = 0.05
"""Fifty callers have their first bytes by then."""

_AT_ONCE = 20
"""So many exchanges are written down in two milliseconds; then others have their turn."""


class Later:
    """Does its work a moment later."""

    def __init__(self) -> None:
        self._work: deque[Callable[[], None]] = deque()

    def add(self, work: Callable[[], None]) -> None:
        """Take work."""
        if not self._work:
            self._come_back()
        self._work.append(work)

    def catch_up(self) -> None:
        """Do all that waits now; what fails keeps nothing else from being done."""
        self._do(len(self._work))

    def _come_back(self) -> None:
        asyncio.get_running_loop().call_later(_DELAY_S, self._do, _AT_ONCE)

    def _do(self, at_most: int) -> None:
        try:
            for _ in range(min(at_most, len(self._work))):
                self._work.popleft()()
        finally:
            if self._work:
                asyncio.get_running_loop().call_soon(self._do, _AT_ONCE)
