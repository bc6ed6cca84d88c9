"""The measured figures: kept by round, so that runs can be saved, joined and compared.

A ratio is taken inside each round, where both sides met the same machine, and then the median of
those; likewise a difference.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from math import ceil
from pathlib import Path
from typing import NamedTuple, Self

OTHERS_SHARE = 0.2
"""Of a core, by programs that are not of the benchmark; the kernel's own work is half of it."""


class Sample(NamedTuple):
    """One figure of one round.

    Attributes:
        round: number of the round.
        load: what was asked of the relay.
        relay: which.
        figure: its name, the unit at its end.
        value: seconds, bytes or a count.
    """

    round: int
    load: str
    relay: str
    figure: str
    value: float


@dataclass
class Figures:
    """What one run or several have measured.

    Attributes:
        machine: what it was measured on and with, in lines.
        notes: what a reader has to know besides: relays that are absent, loads that were not met.
        samples: in the order they came.
    """

    machine: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)

    def values(self, load: str, relay: str, figure: str) -> dict[int, float]:
        """A figure by its round."""
        key = (load, relay, figure)
        return {taken.round: taken.value for taken in self.samples if taken[1:4] == key}

    def compared(
        self,
        load: str,
        figure: str,
        relays: tuple[str, str],
        compare: Callable[[float, float], float],
    ) -> list[float]:
        """What the comparison says of two relays in each round that has both."""
        ours, theirs = (self.values(load, relay, figure) for relay in relays)
        return [compare(ours[number], theirs[number]) for number in ours if number in theirs]

    def undisturbed(self) -> Self:
        """The same without what was measured while other programs were busy."""
        disturbed = {
            taken[:3]
            for taken in self.samples
            if taken.figure == "others_share" and taken.value > OTHERS_SHARE
        }
        loads = len({taken[:3] for taken in self.samples if taken.figure == "others_share"})
        said = f"Left out: {len(disturbed)} of {loads} measurements, since the machine was busy"
        kept = [taken for taken in self.samples if taken[:3] not in disturbed]
        return replace(self, notes=[*self.notes, said], samples=kept)

    def save(self, path: Path) -> None:
        """Write a file that `joined` reads."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def joined(cls, paths: Iterable[Path]) -> Self:
        """The figures of several runs, as if their rounds had followed one another."""
        whole = cls()
        rounds = 0
        for path in paths:
            saved = json.loads(path.read_text())
            samples = [Sample(*sample) for sample in saved["samples"]]
            whole.samples += [taken._replace(round=rounds + taken.round) for taken in samples]
            rounds += 1 + max((taken.round for taken in samples), default=0)
            whole.machine += [line for line in saved["machine"] if line not in whole.machine]
            whole.notes += [line for line in saved["notes"] if line not in whole.notes]
        return whole


def percentile(values: Iterable[float], share: float) -> float:
    """The least of the values that so large a share of them does not exceed.

    Raises:
        IndexError: there are none.
    """
    ordered = sorted(values)
    return ordered[max(ceil(share * len(ordered)), 1) - 1]
