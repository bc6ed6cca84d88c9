"""What the ledger is told of an exchange: each attempt that was abandoned, and the end.

An attempt is abandoned when its upstream may have generated something that no usage accounts for.
That is every ending but three: a completed reply tells its usage; a refusal ends a generation, if
there was one, on the upstream's side, which does not bill it (zero completion insurance); and where
no connection came about nothing was asked for.

Blind spot: an attempt that was given up before the upstream answered is counted as a generation
without an id, although nothing may have been generated.
"""

from typing import cast

from loopguard.billing.entries import Abandoned, ExchangeRow, Reason
from loopguard.billing.keys import Keys
from loopguard.billing.ledger import Ledger
from loopguard.billing.prices import token_count, usd
from loopguard.proxy.record import AttemptRecord, ExchangeRecord

_NOT_ABANDONED = frozenset({"completed", "refused"})


class Accounts:
    """Writes exchanges into the ledger.

    Args:
        ledger: what is written into.
        keys: remembers what an entry is looked up with.
    """

    def __init__(self, ledger: Ledger, keys: Keys) -> None:
        self._ledger = ledger
        self._keys = keys

    @property
    def newest_loop(self) -> str:
        """Names the looping reply that was written down last; empty until there is one."""
        return self._ledger.newest_loop

    async def attempt_ended(
        self, exchange: ExchangeRecord, attempt: AttemptRecord, key: str | None
    ) -> None:
        """Write down an attempt that was abandoned; it is durable afterwards, or will be.

        Args:
            exchange: of the attempt.
            attempt: that has ended.
            key: that it was made with. It is remembered once the upstream has generated with it:
                anyone can make keys up, and the memory for them is bounded.
        """
        fingerprint = None
        if key is not None and attempt.generation is not None:
            fingerprint = self._keys.remember(key)
        if attempt.outcome in _NOT_ABANDONED or attempt.unreachable:
            return
        await self._ledger.record(
            Abandoned(
                exchange=exchange.exchange,
                attempt=attempt.attempt,
                generation=attempt.generation,
                reason=cast("Reason", attempt.outcome),
                rule=attempt.rule,
                channel=attempt.channel,
                sentence=attempt.trip,
                sample=attempt.sample,
                model=exchange.model or "",
                provider=attempt.provider,
                profile=exchange.profile,
                run=exchange.run,
                words=attempt.words,
                chars=attempt.chars,
                fingerprint=fingerprint,
            )
        )

    def exchange_ended(self, exchange: ExchangeRecord) -> None:
        """Write down what an exchange came to."""
        figures = exchange.figures()
        usage = exchange.usage
        self._ledger.record_exchange(
            ExchangeRow(
                exchange=exchange.exchange,
                profile=exchange.profile,
                model=exchange.model or "",
                run=exchange.run,
                outcome=exchange.outcome,
                attempts=figures.attempts,
                loop_aborts=figures.loop_aborts,
                loop_abort_words=figures.loop_abort_words,
                loop_abort_chars=figures.loop_abort_chars,
                prompt_tokens=usage and token_count(usage.prompt_tokens),
                completion_tokens=usage and token_count(usage.completion_tokens),
                cost_usd=usage and usd(usage.cost_usd),
            )
        )
