"""Tells metrics and the log what has happened."""

import logging
from collections.abc import Callable, Sequence

from loopguard.errors import LoopguardError
from loopguard.metrics import Metrics
from loopguard.proxy.record import AttemptRecord, ExchangeRecord

_log = logging.getLogger("loopguard")


class Report:
    """Takes every end of an attempt and of an exchange.

    Args:
        metrics: what is counted.
        readers: are given the record of each ended exchange.
    """

    def __init__(
        self,
        metrics: Metrics,
        readers: Sequence[Callable[[ExchangeRecord], None]] = (),
    ) -> None:
        self._metrics = metrics
        self._readers = readers

    def exchange_began(self) -> None:
        """An exchange has begun."""
        self._metrics.exchange_began()

    def attempt_ended(self, exchange: ExchangeRecord, attempt: AttemptRecord) -> None:
        """An attempt has ended; what it discarded is counted at once."""
        metrics = self._metrics
        metrics.attempt_ended(exchange.dialect, exchange.profile, exchange.model, attempt.outcome)
        if attempt.first_delta_s is not None:
            metrics.first_delta(exchange.dialect, exchange.profile, attempt.first_delta_s)
        if attempt.rule is not None and attempt.channel is not None:
            metrics.tripped(
                exchange.profile,
                exchange.model,
                attempt.rule,
                attempt.channel,
                attempt.words,
                attempt.chars,
            )

    def loops_exhausted(self, exchange: ExchangeRecord) -> None:
        """An exchange failed because its model looped."""
        self._metrics.loops_exhausted(exchange.profile, exchange.model)

    def loop_memory_refused(self) -> None:
        """A request was refused because it has looped lately."""
        self._metrics.loop_memory_refused()

    def request_refused(self, error: LoopguardError) -> None:
        """A request that became no exchange was answered with an error."""
        self._metrics.request_refused(error.error_type)

    def own_fault(self) -> None:
        """A fault of loopguard's own, told where its exception is handled."""
        # The log writes the exception's class and places, no value of the request or the reply.
        _log.exception("a fault of loopguard's own")

    def exchange_ended(self, exchange: ExchangeRecord) -> None:
        """An exchange has ended, whoever ended it."""
        for read in self._readers:
            read(exchange)

    def write_down(self, exchange: ExchangeRecord) -> None:
        """Count and log an exchange that has ended."""
        figures = exchange.figures()
        self._metrics.exchange_ended(
            exchange.dialect,
            exchange.profile,
            exchange.outcome,
            exchange.duration_s,
            figures.attempts,
            exchange.own_time_s,
        )
        _log.info("exchange", extra={"fields": exchange.fields()})
        if exchange.outcome == "completed" and figures.loop_aborts:
            _log.warning(
                "loop detection discarded %d looping model responses on exchange %s before one "
                "completed, throwing away %d words of generated output (%d characters); it was "
                "all paid for and none of it reached the caller",
                figures.loop_aborts,
                exchange.exchange,
                figures.loop_abort_words,
                figures.loop_abort_chars,
            )
