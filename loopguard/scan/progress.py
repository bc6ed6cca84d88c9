"""One line that shows how far a scan has come."""

from collections.abc import Callable
from typing import TextIO

_BETWEEN_S = 0.1
_PATIENCE_S = 0.5
"""A scan that is over sooner shows no bar to a terminal."""

_BAR_CHARS = 24
_ERASE = "\r\x1b[K"


class Progress:
    """The line, redrawn in its place.

    Args:
        out: where it is shown; None shows none.
        total_bytes: of all the files; None where one of them does not say.
        clock: seconds.
        patience_s: nothing is shown before so long.
    """

    def __init__(
        self,
        out: TextIO | None,
        total_bytes: int | None,
        clock: Callable[[], float],
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self._out = out
        self._total_bytes = total_bytes
        self._clock = clock
        self._due_at = clock() + patience_s
        self._shown = False

    def show(self, read_bytes: int, replies: int, tripped: int) -> None:
        """Draw the line, unless it was drawn a moment ago."""
        if self._out is None or self._clock() < self._due_at:
            return
        self._due_at = self._clock() + _BETWEEN_S
        self._shown = True
        counted = f"{replies:,} replies, {tripped:,} tripped"
        if self._total_bytes is None:
            self._out.write(f"{_ERASE}{counted}")
        else:
            share = min(1.0, read_bytes / self._total_bytes) if self._total_bytes else 1.0
            bar = ("#" * round(share * _BAR_CHARS)).ljust(_BAR_CHARS, ".")
            self._out.write(f"{_ERASE}[{bar}] {share:4.0%}  {counted}")
        self._out.flush()

    def clear(self) -> None:
        """Take the line away, so that another may stand there."""
        if self._shown and self._out is not None:
            self._out.write(_ERASE)
            self._out.flush()
            self._shown = False
            self._due_at = self._clock()
