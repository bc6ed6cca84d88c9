"""The ledger's two tables as SQLAlchemy sees them; ``migrations/`` is what creates them."""

from decimal import Decimal

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Double,
    Integer,
    MetaData,
    Table,
    Text,
    TypeDecorator,
)

PICODOLLARS = 10**12


class Usd(TypeDecorator[Decimal]):
    """An amount of US dollars, stored as whole picodollars.

    An integer, because SQLite has no decimal type and would make a binary float of one, and sums
    of floats drift; picodollars, because ``prices`` keeps 12 decimals. 64 bits hold 9.2 million
    dollars, which in SQLite bounds the sum over one ledger as well.
    """

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: Decimal | None, dialect: Dialect) -> int | None:
        """Return what is stored."""
        del dialect
        return None if value is None else int(value * PICODOLLARS)

    def process_result_value(self, value: int | Decimal | None, dialect: Dialect) -> Decimal | None:
        """Return dollars from what was stored or from a sum, which PostgreSQL tells as decimal."""
        del dialect
        return None if value is None else Decimal(int(value)) / PICODOLLARS


metadata = MetaData()

entries = Table(
    "entries",
    metadata,
    Column("exchange", Text, primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("state", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("profile", Text, nullable=False),
    Column("run", Text),
    Column("at_s", BigInteger, nullable=False),
    Column("words", BigInteger, nullable=False),
    Column("chars", BigInteger, nullable=False),
    Column("cost_usd", Usd),
    Column("prompt_tokens", BigInteger),
    Column("completion_tokens", BigInteger),
    Column("cancelled", Boolean),
    Column("generation", Text),
    Column("rule", Text),
    Column("provider", Text),
    Column("fingerprint", Text),
    Column("unpriced_reason", Text),
    Column("looks", Integer, nullable=False),
    Column("look_at_s", Double, nullable=False),
    Column("leased_until_s", Double, nullable=False),
    Column("seen_unfinished", Boolean, nullable=False),
    Column("channel", Text),
    Column("sentence", Text),
    Column("sample", Text),
)

exchanges = Table(
    "exchanges",
    metadata,
    Column("exchange", Text, primary_key=True),
    Column("outcome", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("profile", Text, nullable=False),
    Column("run", Text),
    Column("at_s", BigInteger, nullable=False),
    Column("cost_usd", Usd),
    Column("attempts", Integer, nullable=False),
    Column("loop_aborts", Integer, nullable=False),
    Column("loop_abort_words", BigInteger, nullable=False),
    Column("loop_abort_chars", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger),
    Column("completion_tokens", BigInteger),
)
