"""Several workers serve as one: spread, summed, replaced, drained."""

import asyncio
import json
import os
import signal
import socket
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from loopguard.billing.database import migrations
from loopguard.metrics import FOLDER_VARIABLE
from tests.end_to_end.command import Command, launch, serving
from tests.end_to_end.raw_caller import PATIENCE_S, REQUEST, RawCaller, asked, connected, metrics
from tests.fake_openrouter import FakeOpenRouter, Reply, head, loop, reset, stall, wait
from tests.fake_openrouter.generations import COST_USD

GOOD = Reply("The good answer.")
EVENTS = list(GOOD.events())
LIVE, LIVE_HEADERS = asked("live")


@asynccontextmanager
async def two_workers(fake: FakeOpenRouter, **environment: str) -> AsyncIterator[Command]:
    async with serving(fake.base_url, server__workers="2", **environment) as command:
        yield command


@asynccontextmanager
async def callers(command: Command, count: int) -> AsyncIterator[Sequence[RawCaller]]:
    """Callers that connect one after another."""
    async with AsyncExitStack() as there:
        yield [await there.enter_async_context(connected(command.port)) for _ in range(count)]


async def ask(command: Command, body: dict[str, Any] = REQUEST, **headers: str) -> RawCaller:
    async with connected(command.port) as caller:
        await caller.send(body, headers=headers)
        await caller.whole()
    return caller


async def is_cut(caller: RawCaller) -> bool:
    """Whether the connection broke before the end of the reply, which is read."""
    try:
        await caller.whole()
    except (asyncio.IncompleteReadError, ConnectionError):
        return True
    return False


def run_with(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}", "X-Loopguard-Run": "run-1"}


def folder_of(worker: int) -> Path:
    """Where a worker keeps what it counts."""
    environ = Path(f"/proc/{worker}/environ").read_text("utf-8").split("\0")
    return Path(dict(each.split("=", 1) for each in environ if each)[FOLDER_VARIABLE])


def is_there(path: Path) -> bool:
    return path.exists()


def lives(pid: int) -> bool:
    return is_there(Path(f"/proc/{pid}"))


async def test_a_killed_worker_is_replaced() -> None:
    """Its streams break and no others; it is logged and replaced, and what it counted stays."""
    gate = asyncio.Event()
    streamed = [head(), *EVENTS[:2], wait(gate), *EVENTS[2:]]
    async with (
        FakeOpenRouter([*[streamed] * 6, GOOD]) as fake,
        two_workers(fake) as command,
        callers(command, 6) as streams,
    ):
        for caller in streams:
            await caller.send(LIVE, headers=LIVE_HEADERS)
            await caller.until(b"The good")
        for _ in range(4):
            assert (await ask(command)).status == 200
        series = await metrics(command.admin)
        assert series["loopguard_exchanges_in_flight"] == 6
        assert series["loopguard_exchanges_total{completed}"] == 4
        first, _ = await command.workers(2)
        os.kill(first, signal.SIGKILL)
        died = json.loads(await command.line("a worker has died"))
        assert (died["level"], died["pid"], died["status"]) == ("error", first, -signal.SIGKILL)
        await command.workers(3)
        assert (await metrics(command.admin))["loopguard_exchanges_in_flight"] == 3
        gate.set()
        assert sum([await is_cut(caller) for caller in streams]) == 3
        assert (await ask(command)).status == 200
        series = await metrics(command.admin)
        assert series["loopguard_exchanges_total{completed}"] == 4 + 3 + 1
        assert series["loopguard_exchanges_in_flight"] == 0
        assert series["loopguard_workers"] == 2
        assert series["loopguard_worker_deaths_total"] == 1


async def test_one_drain(tmp_path: Path) -> None:
    """SIGTERM lets the streams of every worker end, and refuses what comes, until the last has."""
    gates = [asyncio.Event(), asyncio.Event()]
    answers = [[head(), *EVENTS[:2], wait(gate), *EVENTS[2:]] for gate in gates]
    ledger = tmp_path / "ledger.db"
    async with (
        FakeOpenRouter(answers) as fake,
        two_workers(fake, ledger__url=f"sqlite:///{ledger}") as command,
        callers(command, 2) as streams,
    ):
        for caller in streams:
            await caller.send(LIVE, headers=LIVE_HEADERS)
            await caller.until(b"The good")
        pids = await command.workers(2)
        command.terminate()
        await command.lines_with('"draining"', 2)
        for gate, caller in zip(gates, streams, strict=True):
            async with callers(command, 2) as late:
                for refused in late:
                    await refused.send(REQUEST)
                    assert await refused.head() == 503
            async with aiohttp.ClientSession() as session:
                ready = await session.get(f"{command.admin}/readyz")
                assert ready.status == 503
            gate.set()
            assert not await is_cut(caller)
        assert await command.ended() == 0
        assert not any(map(lives, pids))
    with sqlite3.connect(ledger) as rows:
        assert rows.execute("SELECT outcome FROM exchanges").fetchall() == [("completed",)] * 2
    rows.close()


async def test_a_run_is_one() -> None:
    """A run that two workers served, each with another key, has one account that is settled."""
    gate = asyncio.Event()
    broken = [head(), *EVENTS[:2], wait(gate), reset]
    async with (
        FakeOpenRouter([broken, loop(), GOOD], lookups=[404]) as fake,
        two_workers(fake, ledger__first_look_s="0.05") as command,
        connected(command.port) as first,
    ):
        await first.send(REQUEST, headers=run_with("sk-first"))
        await fake.attempt(1)
        assert (await ask(command, **run_with("sk-second"))).status == 200
        gate.set()
        await first.whole()
        run = f"{command.admin}/runs/run-1"
        async with aiohttp.ClientSession() as session:
            shown = await (await session.get(run)).json()
            closed = await (await session.post(f"{run}/close?within_s={PATIENCE_S}")).json()
        assert (shown["turns"], shown["loopAborts"], shown["loopAbortOwed"]) == (2, 1, 1)
        assert closed["loopAbortOwed"] == 0
        assert closed["totalCostUsd"] - closed["workCostUsd"] == pytest.approx(2 * COST_USD)
        assert {request.key for request in fake.lookups} == {"sk-first", "sk-second"}


async def test_what_looped_is_known_everywhere() -> None:
    """A request that looped in every attempt costs nothing at any worker when it is asked again."""
    async with FakeOpenRouter([loop()]) as fake, two_workers(fake) as command:
        assert (await ask(command)).error["type"] == "model_response_loop"
        assert len(fake.attempts) == 4
        async with callers(command, 6) as again:
            for caller in again:
                await caller.send(REQUEST)
            for caller in again:
                await caller.whole()
                assert caller.headers["x-loopguard-attempts"] == "0"
        assert len(fake.attempts) == 4


async def test_workers_do_not_outlive_the_command() -> None:
    """When the command is killed its workers drain, end and clear up by themselves."""
    async with (
        FakeOpenRouter([[head(), stall]]) as fake,
        two_workers(fake, server__drain_s="0.1") as command,
        connected(command.port) as caller,
    ):
        await caller.send(REQUEST)
        await fake.attempt(1)
        first, _ = await command.workers(2)
        counts = folder_of(first)
        assert is_there(counts)
        await command.kill()  # returns when nobody is left who could write to the log
        assert not is_there(counts)
        await caller.whole()
        assert caller.error["type"] == "draining"


async def failed_launch(**environment: str) -> tuple[int | None, str]:
    """The status of a command that does not come to serve, and what it says last."""
    running = await launch("http://127.0.0.1:9/v1", server__workers="2", **environment)
    async with asyncio.timeout(PATIENCE_S):
        _, told = await running.communicate()
    return running.returncode, told.decode().splitlines()[-1]


async def test_a_port_that_is_taken_ends_the_command() -> None:
    """It ends with status 1 and says why, as with one worker."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        status, told = await failed_launch(server__port=port)
    assert status == 1
    assert told.startswith("loopguard cannot listen: ")
    assert told.endswith("address already in use")


async def test_a_worker_that_cannot_start(tmp_path: Path) -> None:
    """At the launch its fault ends the command; later it is tried again, and callers wait."""
    ledger = {"ledger__url": f"sqlite:///{tmp_path}/ledger.db"}
    async with FakeOpenRouter([GOOD]) as fake, two_workers(fake, **ledger) as command:
        move_version(tmp_path / "ledger.db", 1)
        status, told = await failed_launch(**ledger)
        assert status == 2
        newer = len(migrations()) + 1
        assert told.startswith(f"ledger.url: the ledger is of version {newer}")
        for pid in await command.workers(2):
            os.kill(pid, signal.SIGKILL)
            await command.line(f'"pid": {pid}, "status"')
        for line in await command.lines_with(f"no worker can be started: {told}", 2):
            failed = json.loads(line)
            assert (failed["level"], failed["next_try_s"]) == ("error", 1.0)
        async with connected(command.port) as waiting:
            await waiting.send(REQUEST)
            move_version(tmp_path / "ledger.db", -1)
            await waiting.whole()
            assert waiting.status == 200
        await command.workers(4)


def move_version(ledger: Path, by: int) -> None:
    rows = sqlite3.connect(ledger, isolation_level=None)
    rows.execute("UPDATE ledger_version SET version = version + ?", (by,))
    rows.close()
