"""The configuration in use, and reading it again while exchanges run."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from loopguard import log
from loopguard.core.detection.detector import describe
from loopguard.metrics import CommandMetrics
from loopguard.proxy.fleet import Fleet
from loopguard.settings import ConfigurationError, Settings, adopted

_log = logging.getLogger("loopguard")


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What reading the configuration again has come to.

    Attributes:
        faults: one line for each, naming profile and key; then nothing has changed.
        warnings: what is in use and probably not meant, and what is in use at the next start only.
        workers: how many there are.
        using: how many of them serve what comes from now on by it.
    """

    faults: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    workers: int = 0
    using: int = 0


class InUse:
    """The configuration that new exchanges are served by.

    Args:
        settings: of the launch.
        read_again: reads the file and the environment as the launch did.
        fleet: told of another configuration.
        metrics: told of each reading.

    Attributes:
        settings: in use now. What is in use at the next start only is as it was at the launch.
    """

    def __init__(
        self,
        settings: Settings,
        read_again: Callable[[], Settings],
        fleet: Fleet,
        metrics: CommandMetrics,
    ) -> None:
        self.settings = settings
        self._read_again = read_again
        self._fleet = fleet
        self._metrics = metrics
        self._reading = asyncio.Lock()

    @property
    def admin_token(self) -> str | None:
        """What a change has to present; None where it has to come from this machine."""
        token = self.settings.server.admin_token
        return None if token is None else token.get_secret_value()

    async def reload(self) -> Reloaded:
        """Read it again; use it where nothing is wrong with it, in all workers or in none."""
        async with self._reading:
            try:
                read = await asyncio.to_thread(self._read_again)
                settings, waiting = adopted(self.settings, read)
            except ConfigurationError as error:
                self._metrics.configuration_refused()
                for fault in error.faults:
                    _log.error("the configuration is refused and the old one stays: %s", fault)
                return Reloaded(faults=error.faults)
            log.adjust(settings.log.level, settings.log.format)
            self.settings = settings
            using = await self._fleet.use(settings)
            self._metrics.configuration_read()
            workers = len(self._fleet.workers)
            _log.info("the configuration was read again", extra=log.fields(workers=workers))
            announce(settings)
            for warning in waiting:
                _log.warning(warning)
            return Reloaded(warnings=(*settings.warnings, *waiting), workers=workers, using=using)


def announce(settings: Settings) -> None:
    """Log what a configuration warns of, and what each armed profile does."""
    for warning in settings.warnings:
        _log.warning(warning)
    for name, profile in settings.profiles.items():
        if sentence := describe(profile.detection):
            _log.info("profile `%s`: %s", name, sentence)
