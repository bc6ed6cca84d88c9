"""The tables of one run or several, in Markdown.

python -m tests.benchmarks.report [--undisturbed] FILE ...
"""

import argparse
from collections.abc import Iterable, Iterator
from operator import sub, truediv
from pathlib import Path
from statistics import median
from typing import NamedTuple

from tests.benchmarks.figures import OTHERS_SHARE, Figures
from tests.benchmarks.loads import (
    BULK_CHUNKS,
    BULK_STREAMS,
    BURST_CALLERS,
    CHARS_GROWTH,
    HELD_CHARS,
    HELD_STREAMS,
    IDLE_STREAMS,
    LOADS,
    PACED_PER_S,
    PACED_STREAMS,
    SHORT_CALLERS,
    SHORT_CHUNKS,
    SLOW_PER_S,
    SLOW_STREAMS,
    STALL_STREAMS,
    STEADY_PER_S,
    STREAMS_GROWTH,
    WHOLE_CALLERS,
    WHOLE_CHARS,
    WORKERS_CALLERS,
)
from tests.benchmarks.relays import STARTERS
from tests.benchmarks.upstream import DELTA_CHARS

ENDS_SHARE = 0.8
"""Of a core; callers and upstream that are busier may be what is measured."""

US, MS, COUNT = 1e6, 1e3, 1.0
MIB = 1 / 2**20

PACED = f"{PACED_STREAMS} x {PACED_PER_S}/s"
SLOW = f"{SLOW_STREAMS} x {SLOW_PER_S}/s"


class Column(NamedTuple):
    """One column: a figure, or how it compares.

    Attributes:
        title: with the unit.
        load, figure: which.
        scale: from the figure's unit to the title's.
        beside: the relay that it is compared with; a ratio, or with `added` a difference.
        added: see there.
    """

    title: str
    load: str
    figure: str
    scale: float = COUNT
    beside: str = ""
    added: bool = False

    def values(self, figures: Figures, relay: str) -> list[float]:
        """One for each round."""
        if not self.beside:
            measured = figures.values(self.load, relay, self.figure).values()
        else:
            compare = sub if self.added else truediv
            relays = (relay, self.beside)
            measured = figures.compared(self.load, self.figure, relays, compare)
        return [value * self.scale for value in measured]


def compared(load: str, figure: str, *relays: str) -> list[Column]:
    """Ratios to these relays."""
    return [Column(f"x {relay}", load, figure, beside=relay) for relay in relays]


def added(title: str, load: str, figure: str, scale: float) -> Column:
    """What a relay adds to the figure of a direct connection."""
    return Column(title, load, figure, scale, beside="direct", added=True)


TABLES = {
    f"A lone chunk: {PACED}": [
        Column("us/chunk", "paced", "chunk_s", US),
        *compared("paced", "chunk_s", "passthrough", "nginx", "portkey", "litellm"),
    ],
    f"In bulk: {BULK_STREAMS} replies of {BULK_CHUNKS:,} chunks": [
        Column("us/chunk", "bulk", "chunk_s", US),
        *compared("bulk", "chunk_s", "passthrough", "nginx", "portkey", "litellm"),
    ],
    f"Few slow streams: {SLOW}": [
        Column("us/chunk", "slow", "chunk_s", US),
        *compared("slow", "chunk_s", "passthrough", "nginx"),
        Column("delay, median, us", "slow", "delay_median_s", US),
        added("added, us", "slow", "delay_median_s", US),
        Column("99th percentile, us", "slow", "delay_p99_s", US),
        added("added, us", "slow", "delay_p99_s", US),
    ],
    f"Time to first byte, {BURST_CALLERS} callers connecting at once": [
        Column("median, ms", "connecting", "first_byte_median_s", MS),
        added("added, ms", "connecting", "first_byte_median_s", MS),
        Column("99th percentile, ms", "connecting", "first_byte_p99_s", MS),
        added("added, ms", "connecting", "first_byte_p99_s", MS),
        Column("us/request", "connecting", "request_s", US),
    ],
    f"Short streams of {SHORT_CHUNKS} chunks, {SHORT_CALLERS} callers in turns": [
        Column("requests/s", "short", "requests_per_s"),
        Column("us/request", "short", "request_s", US),
        *compared("short", "request_s", "passthrough"),
    ],
    f"Whole replies of {WHOLE_CHARS:,} characters, {WHOLE_CALLERS} callers in turns": [
        Column("requests/s", "whole", "requests_per_s"),
        Column("ms/request", "whole", "request_s", MS),
        *compared("whole", "request_s", "passthrough"),
    ],
    "Memory": [
        Column("idle, MiB", "start", "idle_bytes", MIB),
        Column(f"{PACED}, MiB", "paced", "loaded_bytes", MIB),
        Column(f"{IDLE_STREAMS} idle streams, MiB", "idle", "loaded_bytes", MIB),
    ],
    f"{IDLE_STREAMS} idle streams, and their callers leaving": [
        Column("us/stream/s", "idle", "stream_second_s", US),
        Column("closes seen", "idle", "close_share"),
        Column("median, ms", "idle", "close_median_s", MS),
        Column("99th percentile, ms", "idle", "close_p99_s", MS),
    ],
    f"Longest delay of a chunk among {STALL_STREAMS} streams": [
        Column("median, us", "stalls", "delay_median_s", US),
        Column("longest, ms", "stalls", "delay_longest_s", MS),
        added("added, ms", "stalls", "delay_longest_s", MS),
        Column("its own metric since the start, ms", "stalls", "own_stall_s", MS),
    ],
    f"Growth with the streams: us/chunk of {STEADY_PER_S:,} chunks/s in all": [
        Column(f"{number:,} streams", f"streams {number}", "chunk_s", US)
        for number in STREAMS_GROWTH
    ],
    f"{HELD_STREAMS:,} held streams of {HELD_CHARS:,} characters each": [
        Column("held, MiB", "thousand", "held_bytes", MIB),
        Column("most, while they leave, MiB", "thousand", "most_bytes", MIB),
    ],
    f"Workers: whole replies of {WHOLE_CHARS:,} characters, {WORKERS_CALLERS} callers in turns": [
        Column("requests/s", "workers", "requests_per_s"),
        *compared("workers", "requests_per_s", "1 worker"),
        Column("ms/request", "workers", "request_s", MS),
        Column("ends, cores", "workers", "ends_share"),
    ],
}


class Wanted(NamedTuple):
    """One aim of the project.

    Attributes:
        said: what is wanted.
        most: the bound; for `least` the other way round.
        column: the figure.
        relay: whose.
        unit: of the bound.
        least: whether more is better.
    """

    said: str
    most: float
    column: Column
    relay: str
    unit: str = "x"
    least: bool = False


_LONE, _BULK = TABLES[f"A lone chunk: {PACED}"], compared("bulk", "chunk_s", "passthrough")
_AGAINST_PASSTHROUGH, _AGAINST_NGINX, _AGAINST_PORTKEY, _AGAINST_LITELLM = _LONE[1:]

WANTED = [
    Wanted("live, lone chunk, beside the passthrough", 1.0, _AGAINST_PASSTHROUGH, "live"),
    Wanted("live, lone chunk, beside nginx (aim)", 2.2, _AGAINST_NGINX, "live"),
    Wanted("held, lone chunk, beside the passthrough", 0.85, _AGAINST_PASSTHROUGH, "held"),
    Wanted("held, lone chunk, beside nginx (aim)", 1.7, _AGAINST_NGINX, "held"),
    Wanted("live, in bulk, beside the passthrough", 1.6, _BULK[0], "live"),
    Wanted("live, lone chunk, beside Portkey", 0.5, _AGAINST_PORTKEY, "live"),
    Wanted("live, lone chunk, beside LiteLLM", 0.1, _AGAINST_LITELLM, "live"),
    Wanted(
        f"memory of {HELD_STREAMS:,} held streams",
        400,
        Column("", "thousand", "most_bytes", MIB),
        "held",
        "MiB",
    ),
    Wanted(
        "2 workers, requests/s beside 1",
        1.7,
        *compared("workers", "requests_per_s", "1 worker"),
        "2 workers",
        least=True,
    ),
    *(
        Wanted(
            f"longest stall, {STALL_STREAMS} streams, {relay}",
            20,
            added("", "stalls", "delay_longest_s", MS),
            relay,
            "ms",
        )
        for relay in ("live", "held")
    ),
]


def spread(values: list[float]) -> str:
    """The median, and how far the rounds were apart."""
    if not values:
        return "-"
    middle = rounded(median(values))
    if len(values) == 1:
        return middle
    return f"{middle} ({rounded(min(values))} to {rounded(max(values))})"


def rounded(value: float) -> str:
    """Three digits, or all before the point."""
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:,.{digits}f}"


def table(heads: list[str], rows: Iterable[list[str]]) -> Iterator[str]:
    """A table in Markdown."""
    yield "| " + " | ".join(heads) + " |"
    yield "|---" * len(heads) + "|"
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def measured(figures: Figures) -> Iterator[str]:
    """Every table that has a figure."""
    for title, columns in TABLES.items():
        rows = [
            [relay, *(spread(column.values(figures, relay)) for column in columns)]
            for relay in STARTERS
            if any(column.values(figures, relay) for column in columns)
        ]
        if rows:
            yield f"\n{title}:\n"
            yield from table(["", *(column.title for column in columns)], rows)


def growth_with_length(figures: Figures) -> Iterator[str]:
    """What a chunk more costs in replies of growing length."""
    first, *further = CHARS_GROWTH
    heads = ["", f"reply of {first:,}, us/chunk"]
    heads += [
        f"{shorter:,} to {longer:,}" for shorter, longer in zip(CHARS_GROWTH, further, strict=False)
    ]
    rows = []
    for relay in STARTERS:
        costs = [figures.values(f"chars {length}", relay, "reply_s") for length in CHARS_GROWTH]
        if not all(costs):
            continue
        row = [relay, spread([cost / first * DELTA_CHARS * US for cost in costs[0].values()])]
        for shorter, longer, chars in zip(costs, costs[1:], further, strict=False):
            before = CHARS_GROWTH[further.index(chars)]
            chunks = (chars - before) / DELTA_CHARS
            rise = [(longer[at] - shorter[at]) / chunks * US for at in longer if at in shorter]
            row.append(spread(rise))
        rows.append(row)
    if rows:
        yield "\nGrowth with the reply, in bulk: us for each chunk more:\n"
        yield from table(heads, rows)


def no_more_than_passthrough(figures: Figures) -> Iterator[list[str]]:
    """Rows of the aims that compare what is added to a direct connection."""
    said = {
        f"added delay per chunk, median, {SLOW}": ("slow", "delay_median_s", US, "us"),
        f"time to first byte, {BURST_CALLERS} at once, median, added": (
            "connecting",
            "first_byte_median_s",
            MS,
            "ms",
        ),
    }
    for name, (load, figure, scale, unit) in said.items():
        column = added("", load, figure, scale)
        live, plain = (column.values(figures, relay) for relay in ("live", "passthrough"))
        if live and plain:
            met = median(live) <= median(plain)
            wanted = f"<= {spread(plain)} {unit}, the passthrough's"
            yield [f"live, {name}", wanted, f"{spread(live)} {unit}", "yes" if met else "**no**"]


def aims(figures: Figures) -> Iterator[str]:
    """What is wanted, what was seen, and whether that is enough."""
    rows = list(no_more_than_passthrough(figures))
    for wanted in WANTED:
        values = wanted.column.values(figures, wanted.relay)
        if not values:
            continue
        seen = median(values)
        met = seen >= wanted.most if wanted.least else seen <= wanted.most
        bound = f"{'>=' if wanted.least else '<='} {wanted.most:g} {wanted.unit}"
        rows.append(
            [wanted.said, bound, f"{spread(values)} {wanted.unit}", "yes" if met else "**no**"]
        )
    if rows:
        yield "\nWanted and seen:\n"
        yield from table(["figure", "wanted", "seen", "met"], rows)


def too_busy(figures: Figures) -> list[str]:
    """Words about the loads that something else than the relay may have decided."""
    said = {
        "ends_share": (ENDS_SHARE, "callers and upstream"),
        "others_share": (OTHERS_SHARE, "programs that are not of the benchmark"),
    }
    most: dict[tuple[str, str, str], float] = {}
    for taken in figures.samples:
        if taken.figure in said and taken.value > said[taken.figure][0]:
            key = taken[1:4]
            most[key] = max(most.get(key, 0), taken.value)
    return [
        f"Load {load} on {relay}: {said[figure][1]} used {share:.0%} of a core."
        for (load, relay, figure), share in most.items()
    ]


def report(figures: Figures) -> str:
    """All of it. Figures are medians of the rounds, with the least and the most of them."""
    rounds = {
        load: len({taken.round for taken in figures.samples if taken.load == load})
        for load in LOADS
    }
    counted = ", ".join(f"{load} {number}" for load, number in rounds.items() if number)
    lines = [f"* {line}" for line in (*figures.machine, f"Rounds: {counted}", *figures.notes)]
    lines += [f"* {line}" for line in too_busy(figures)]
    lines += [*measured(figures), *growth_with_length(figures), *aims(figures)]
    return "\n".join(lines)


def main() -> None:
    """Print the tables of saved runs."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.report", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument(
        "--undisturbed",
        action="store_true",
        help="without what was measured while other programs were busy",
    )
    asked = parser.parse_args()
    figures = Figures.joined(asked.files)
    print(report(figures.undisturbed() if asked.undisturbed else figures))


if __name__ == "__main__":
    main()
