"""`loopguard`, whose ledger is told nothing: what the other one is compared with."""

import sys

from loopguard.cli import main
from loopguard.proxy.accounts import Accounts


async def attempt_ended(*_: object) -> None:
    """Write nothing down."""


def exchange_ended(*_: object) -> None:
    """Write nothing down."""


if __name__ == "__main__":
    Accounts.attempt_ended = attempt_ended  # type: ignore[method-assign] - the point of it
    Accounts.exchange_ended = exchange_ended  # type: ignore[method-assign] - the same
    sys.exit(main())
