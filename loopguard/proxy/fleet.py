"""All workers of a command, asked as one.

A worker serves callers with one event loop. A command that has one worker runs it in its own
process; with more, each has a process of its own, and what the fleet holds of it asks over a socket
(`loopguard.workers`). Who asks a fleet does not see the difference.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from loopguard.channel import Gone
from loopguard.errors import ModelResponseLoop
from loopguard.proxy.sight import SHOWN_EXCHANGES, Sights
from loopguard.settings import Settings

_log = logging.getLogger("loopguard")

_Answer = TypeVar("_Answer")


class Worker(Protocol):
    """What a worker is asked; any of it raises `Gone` where the worker is no more."""

    async def sights(self) -> Sights:
        """The exchanges in flight."""

    async def refresh(self) -> None:
        """Bring the metrics up to date that are not kept so."""

    async def flush(self) -> None:
        """Write the rows for the ledger that are still in memory, within reason."""

    async def settle(self, run: str, within_s: float) -> None:
        """Ask for the prices that a run owes, with the keys that this worker has seen."""

    async def run_figures(self, run: str) -> dict[str, object]:
        """The figures of a run, as the ledger has them."""

    async def looped(self, request: bytes, error: ModelResponseLoop, replies: int) -> None:
        """A request has cost another worker so many looping replies, and this error."""

    async def use(self, settings: Settings) -> None:
        """Serve what comes from now on by this configuration; what runs keeps its own."""

    async def drain(self) -> None:
        """Take no further exchange, let the running ones end, end the rest after ``drain_s``."""


class Fleet:
    """Asks every worker.

    Attributes:
        workers: those that serve now; whoever starts and ends them keeps the list.
        draining: whether no further exchange is taken.
    """

    def __init__(self) -> None:
        self.workers: list[Worker] = []
        self.draining = False

    @property
    def ready(self) -> bool:
        """Whether a further exchange would be served."""
        return bool(self.workers) and not self.draining

    async def sights(self) -> Sights:
        """The exchanges in flight; ``newest_loop`` names the latest of each worker."""
        answers = await self._ask_all(lambda worker: worker.sights())
        shown = [sight for answer in answers for sight in answer.shown]
        shown.sort(key=lambda sight: (sight.state != "suspected", -sight.elapsed_s))
        return Sights(
            in_flight=sum(answer.in_flight for answer in answers),
            suspected=sum(answer.suspected for answer in answers),
            shown=shown[:SHOWN_EXCHANGES],
            newest_loop=" ".join(answer.newest_loop for answer in answers if answer.newest_loop),
        )

    async def refresh(self) -> None:
        """Bring the metrics up to date that are not kept so."""
        await self._ask_all(lambda worker: worker.refresh())

    async def run_figures(self, run: str) -> dict[str, object]:
        """The figures of a run: what every worker knows of it is written before they are read.

        Raises:
            Gone: nobody is left to read them.
            Exception: of the database's driver, where the database is away.
        """
        await self._ask_all(lambda worker: worker.flush())
        if not self.workers:
            raise Gone
        return await self.workers[0].run_figures(run)

    async def close_run(self, run: str, within_s: float) -> dict[str, object]:
        """Ask for the prices that a run still owes, and log its figures as ``run_summary``.

        Args:
            run: its name; one that goes on afterwards is none the worse for it.
            within_s: the answer comes after this time at the latest, whatever is owed then.

        Raises:
            Gone: nobody is left to read the figures.
            Exception: of the database's driver, where the database is away.
        """
        await self._ask_all(lambda worker: worker.settle(run, within_s))
        figures = await self.run_figures(run)
        _log.info("run_summary", extra={"fields": figures})
        return figures

    async def use(self, settings: Settings) -> int:
        """Let every worker serve what comes from now on by this configuration; how many do."""
        return len(await self._ask_all(lambda worker: worker.use(settings)))

    async def drain(self) -> None:
        """Drain every worker."""
        self.draining = True
        await self._ask_all(lambda worker: worker.drain())

    async def _ask_all(self, ask: Callable[[Worker], Awaitable[_Answer]]) -> list[_Answer]:
        """The answers of all workers but those that have died meanwhile."""
        answers: list[_Answer] = []
        for answer in await asyncio.gather(*map(ask, self.workers), return_exceptions=True):
            match answer:
                case Gone():
                    continue
                case BaseException():
                    raise answer
                case _:
                    answers.append(answer)
        return answers
