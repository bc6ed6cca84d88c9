"""The table of faults: all rows, and how they are tried."""

import asyncio
import tempfile
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.faults import callers, upstream
from tests.faults.fault import Fault, Result, Try, play
from tests.faults.ground import AT_REST, Ground, Seen, ground
from tests.faults.machine import MACHINE

AT_ONCE = 24
"""Tries at a time on one ground: nearly all of them wait for a time limit."""


class Plot(NamedTuple):
    """Rows that one process serves.

    Attributes:
        title: what they have in common.
        environment: the settings of the process.
        faults: the rows.
    """

    title: str
    environment: Mapping[str, str]
    faults: Sequence[Fault]


PLOTS = (
    Plot("The upstream", upstream.ENVIRONMENT, upstream.UPSTREAM),
    Plot("The upstream, at length", upstream.BIG_ENVIRONMENT, upstream.BIG),
    Plot("The caller", callers.ENVIRONMENT, callers.CALLERS),
)

MACHINES_AT_ONCE = 4
"""Processes that something is done to: each takes a second of the processor to start."""


def rest(plot: Plot) -> Fault:
    """The last row of a plot: what is left of all the others."""

    async def look(ground: Ground) -> Seen:
        return await ground.at_rest()

    what = f"all of this has happened to one process ({plot.title.lower()})"
    return Fault(what, "all", *AT_REST, [Try("after all", look, AT_REST)])


def rows() -> Iterator[tuple[str, Fault]]:
    """Every row of the table, below its title."""
    for plot in PLOTS:
        for fault in (*plot.faults, rest(plot)):
            yield plot.title, fault
    for fault in MACHINE:
        yield "The machine", fault


async def try_all(names: Container[str]) -> dict[str, Result]:
    """Try the rows of these names; the plots at once, each in a process of its own."""
    results = {
        fault.name: Result() for _, fault in rows() if fault.name in names and fault.lacking is None
    }
    await asyncio.gather(*(_try_plot(plot, results) for plot in PLOTS), _try_machine(results))
    return results


async def _try_machine(results: Mapping[str, Result]) -> None:
    gate = asyncio.Semaphore(MACHINES_AT_ONCE)

    async def one(fault: Fault) -> None:
        async with gate:
            for each in fault.tries:
                with tempfile.TemporaryDirectory() as folder:
                    await play(each, Path(folder), results[fault.name])

    await asyncio.gather(*(one(fault) for fault in MACHINE if fault.name in results))


async def _try_plot(plot: Plot, results: Mapping[str, Result]) -> None:
    faults = [fault for fault in plot.faults if fault.name in results]
    last = rest(plot)
    if not faults and last.name not in results:
        return
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(fault: Fault, chosen: Try) -> None:
        async def followed(here: Ground) -> Seen:
            seen = await chosen.run(here)
            await here.next_works()
            return seen

        async with gate:
            await play(Try(chosen.how, followed, chosen.expected), here, results[fault.name])

    with tempfile.TemporaryDirectory() as folder:
        async with ground(Path(folder), **plot.environment) as here:
            await here.began()
            await asyncio.gather(
                *(one(fault, each) for fault in faults if not fault.alone for each in fault.tries)
            )
            for fault in faults:
                if fault.alone:
                    for each in fault.tries:
                        await one(fault, each)
            if last.name in results:
                (look,) = last.tries
                await play(look, here, results[last.name])


def written(results: Mapping[str, Result]) -> Iterator[str]:
    """The lines of the table in Markdown, a heading above each part."""
    title = ""
    for above, fault in rows():
        if above != title:
            title = above
            yield from ("", f"## {title}", "")
            yield "| fault | served | what the caller got | what was recorded | survived |"
            yield "|---|---|---|---|---|"
        result = results.get(fault.name)
        survived = (
            f"not tried: {fault.lacking}"
            if result is None
            else f"{result.tried - len(result.lost)} of {result.tried}"
        )
        cells = (fault.what, fault.served, fault.got, fault.recorded, survived)
        yield f"| {' | '.join(cells)} |"


def summed(results: Mapping[str, Result]) -> str:
    """Tried, survived and lost in one line."""
    tried = sum(result.tried for result in results.values())
    lost = sum(len(result.lost) for result in results.values())
    return f"{len(results)} faults, {tried} tries: {tried - lost} survived, {lost} lost."
