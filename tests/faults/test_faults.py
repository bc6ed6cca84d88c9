"""Every row of the table of faults comes out as the table says."""

import asyncio

import pytest

from tests.faults.fault import Fault, Result, Try, play
from tests.faults.table import rows, try_all

FAULTS = {fault.name: fault for _, fault in rows()}


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest) -> dict[str, Result]:
    """What became of the rows whose tests were chosen, all of them tried together."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    chosen = {item.callspec.params["name"] for item in items if item.originalname == "test_fault"}
    return asyncio.run(try_all(chosen))


@pytest.mark.parametrize("name", FAULTS)
def test_fault(results: dict[str, Result], name: str) -> None:
    """The caller gets and the records hold what the table says; nothing is left, the next works."""
    if FAULTS[name].lacking is not None:
        pytest.skip(FAULTS[name].lacking)
    assert results[name].lost == []
    assert results[name].tried == len(FAULTS[name].tries)


async def test_another_ending_is_lost() -> None:
    """A try that comes out otherwise than expected, or not at all, is lost."""

    async def otherwise(_: object) -> tuple[str, str]:
        return "a clean end of half a reply", "completed"

    async def not_at_all(_: object) -> tuple[str, str]:
        raise TimeoutError

    result = Result()
    for run in (otherwise, not_at_all):
        await play(Try("once", run, ("the reply", "completed")), None, result)
    assert (result.tried, len(result.lost)) == (2, 2)


def test_names_are_told_apart() -> None:
    """No two rows of the table have the same name."""
    names = [fault.name for _, fault in rows()]
    assert len(names) == len(set(names))
    assert all(isinstance(fault, Fault) for fault in FAULTS.values())
