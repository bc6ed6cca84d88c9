"""What is done after an attempt has ended."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The budget of one exchange.

    Attributes:
        max_attempts: upstream requests that one exchange may cost, 1 or more.
        initial_wait_s: upper bound of the wait before the second attempt; doubled each time.
        max_wait_s: cap of every wait, that of an upstream's Retry-After included.
        exchange_timeout_s: seconds for all attempts and waits together.
    """

    max_attempts: int
    initial_wait_s: float
    max_wait_s: float
    exchange_timeout_s: float
