"""What each framework makes of a looping model, alone and behind loopguard.

Runs the clients that are installed: `python -m tests.frameworks.install [CLIENT...]`.
"""

from pathlib import Path

import pytest

from loopguard.runaway import ANSWER, UNIT
from loopguard.settings import load
from tests.frameworks.clients import CLIENTS, Client
from tests.frameworks.survey import DRIVERS, SCENES, play

SURVEY_CHARS = 300_048
README = Path(__file__).parents[2] / "README.md"

each_client = pytest.mark.parametrize(
    ("client", "wire"),
    [
        pytest.param(
            client,
            wire,
            id=f"{client.name}-{wire}",
            marks=pytest.mark.skipif(
                not client.is_installed,
                reason=f"{client.name} is not installed (python -m tests.frameworks.install)",
            ),
        )
        for client in CLIENTS
        for wire in client.wires
    ],
)


@each_client
async def test_without_a_guard_the_loop_reaches_the_caller(client: Client, wire: str) -> None:
    """Asked alone, the endpoint's loop is read whole; litellm gives up on identical chunks."""
    row = await play(client, wire, SCENES["alone"]._replace(pace_s=0))
    if client.name in {"litellm", "aider"}:
        assert 0 < row.loop_chars < SURVEY_CHARS
    else:
        assert row.loop_chars == SURVEY_CHARS


@each_client
async def test_two_loops_are_never_seen(client: Client, wire: str) -> None:
    """A model that loops twice and then answers has answered, and that is all the caller saw."""
    row = await play(client, wire, SCENES["twice"])
    assert row.verdict == "the answer"
    assert row.loop_chars == 0
    assert UNIT.strip() not in row.ending.stdout + row.ending.stderr
    assert len(row.requests) == 1
    assert [reply.hung_up for reply in row.replies] == [True, True, False]


@each_client
async def test_a_loop_without_end_is_a_failure_with_its_name(client: Client, wire: str) -> None:
    """A model that always loops is told as one, costs four replies, and is asked for no more."""
    settings = load(None, {})
    row = await play(client, wire, SCENES["always"])
    assert row.names_the_loop
    assert ANSWER not in row.ending.stdout
    assert row.loop_chars == 0
    assert len(row.requests) <= client.asks
    remembered_until = row.replies[0].at + settings.loop_memory.ttl_s
    soon = [reply for reply in row.replies if reply.at < remembered_until]
    assert len(soon) == settings.retry.max_attempts


def test_the_readme_has_what_was_tried() -> None:
    """Every line of a configuration in the README stands, in its order, in a driver run here."""
    drivers = [driver.read_text() for driver in DRIVERS.iterdir() if driver.is_file()]
    snippets = [block.partition("\n")[2] for block in README.read_text().split("```")[1::2]]
    assert len(snippets) >= len(CLIENTS)
    for snippet in snippets:
        assert any(stands_in(snippet, driver) for driver in drivers), snippet


def stands_in(snippet: str, driver: str) -> bool:
    """Whether a driver has the snippet's lines one after another, whatever it has in between.

    In between it chooses a wire; of a command it may have more options.
    """
    lines = iter(driver.splitlines())
    return all(
        any(shown.strip() in line for line in lines) for shown in snippet.splitlines() if shown
    )
