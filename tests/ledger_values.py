"""An abandoned generation and an exchange, of which a test names what it is about."""

from decimal import Decimal
from typing import Any

from loopguard.billing.entries import Abandoned, ExchangeRow


def abandoned(exchange: str = "exchange-1", attempt: int = 1, **named: Any) -> Abandoned:
    values: dict[str, Any] = {
        "generation": f"gen-{exchange}-{attempt}",
        "reason": "looped",
        "rule": "frequency",
        "channel": "content",
        "sentence": "2 words repeated across 3000 consecutive words",
        "sample": None,
        "model": "vendor/model",
        "provider": "DeepInfra",
        "profile": "default",
        "run": "run-1",
        "words": 3065,
        "chars": 12261,
        "fingerprint": "0123456789abcdef",
    }
    return Abandoned(exchange, attempt, **values | named)


def exchange_row(exchange: str = "exchange-1", **named: Any) -> ExchangeRow:
    values: dict[str, Any] = {
        "profile": "default",
        "model": "vendor/model",
        "run": "run-1",
        "outcome": "completed",
        "attempts": 1,
        "loop_aborts": 0,
        "loop_abort_words": 0,
        "loop_abort_chars": 0,
        "prompt_tokens": 254,
        "completion_tokens": 500,
        "cost_usd": Decimal("0.008262"),
    }
    return ExchangeRow(exchange, **values | named)
