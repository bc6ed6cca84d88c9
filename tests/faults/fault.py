"""A row of the table of faults, and how it is tried."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from traceback import extract_tb
from typing import Any

from tests.faults.ground import Seen


@dataclass(frozen=True)
class Try:
    """One exchange, or what takes its place.

    Attributes:
        how: in a word or two, where a row has several.
        run: plays the fault; says what was seen.
        expected: what should be.
    """

    how: str
    run: Callable[[Any], Awaitable[Seen]]
    expected: Seen


@dataclass(frozen=True)
class Fault:
    """One row.

    Attributes:
        what: happens.
        served: how the callers are.
        got: what they should get.
        recorded: what should be written down.
        tries: all that is tried.
        alone: whether nothing else may happen at the same time.
        lacking: why it cannot be tried here, None where it can.
    """

    what: str
    served: str
    got: str
    recorded: str
    tries: Sequence[Try]
    alone: bool = False
    lacking: str | None = None

    @property
    def name(self) -> str:
        """Of the row, once in the table."""
        return f"{self.what} ({self.served})"


@dataclass
class Result:
    """What became of a row.

    Attributes:
        tried: how many tries there were.
        lost: a line for each try that did not come out as expected.
    """

    tried: int = 0
    lost: list[str] = field(default_factory=list)


async def play(one: Try, ground: Any, result: Result) -> None:
    """Play one try, and note what was lost."""
    result.tried += 1
    try:
        seen: Any = await one.run(ground)
    except Exception as error:  # noqa: BLE001 - a try that fails is a line of the table
        mine = [step for step in extract_tb(error.__traceback__) if "/tests/" in step.filename]
        way = " > ".join(f"{step.name}:{step.lineno}" for step in mine)
        seen = f"{type(error).__name__} {error} ({way})"
    if seen != one.expected:
        result.lost.append(f"{one.how}: {seen} in the place of {one.expected}")
