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
"""Fifty callers have their first bytes by then. What a worker at its limit ends meanwhile is
written down in some five milliseconds."""


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
        try:
            while self._work:
                self._work.popleft()()
        finally:
            if self._work:
                self._come_back()

    def _come_back(self) -> None:
        asyncio.get_running_loop().call_later(_DELAY_S, self.catch_up)
