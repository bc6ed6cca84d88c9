"""What a run has come to so far, and the settling of one that has ended."""

import logging

from loopguard.billing.figures import run_figures
from loopguard.billing.ledger import Ledger
from loopguard.billing.reconciler import Reconciler

FLUSH_S = 1.0
"""How long an answer waits for rows that are on their way; they are written twice a second."""

_log = logging.getLogger(__name__)


class Runs:
    """Answers for the runs in a ledger."""

    def __init__(self, ledger: Ledger, reconciler: Reconciler) -> None:
        """Args: ledger: what is read. reconciler: settles what a run owes."""
        self._ledger = ledger
        self._reconciler = reconciler

    async def figures(self, run: str) -> dict[str, object]:
        """Return the figures of a run, as ``loopguard.billing.figures.run_figures`` names them.

        Raises:
            Exception: of the database's driver, where the database is away.
        """
        await self._ledger.flush(FLUSH_S)
        return await run_figures(self._ledger.database, run)

    async def close(self, run: str, within_s: float) -> dict[str, object]:
        """Ask for the prices that a run still owes, and log its figures as ``run_summary``.

        Args:
            run: its name; one that goes on afterwards is none the worse for it.
            within_s: the answer comes after this time at the latest, whatever is owed then.

        Raises:
            Exception: of the database's driver, where the database is away.
        """
        await self._reconciler.settle(run, within_s)
        figures = await self.figures(run)
        _log.info("run_summary", extra={"fields": figures})
        return figures
