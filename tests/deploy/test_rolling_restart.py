"""Two replicas behind a balancer are restarted in turn under load, and no caller notices.

In the suite one of them is restarted. `LOOPGUARD_ROLLING=2000` goes on until so many exchanges have
ended, which takes a minute: the size that issue 7 asks for.
"""

import asyncio
import itertools
import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest

from loopguard.billing.database import Database
from loopguard.billing.figures import read_exchanges
from tests.deploy.balancers import Replica, haproxy, installed, nginx_told
from tests.end_to_end.command import serving
from tests.end_to_end.raw_caller import PATIENCE_S, asked, content_of, metrics
from tests.fake_openrouter import FakeOpenRouter, Refusal, Reply, head, pace
from tests.ports import free_port

EXCHANGES = int(os.environ.get("LOOPGUARD_ROLLING", "100"))
CALLERS = 40
MODES = ("held", "live", "whole")

# What deploy/haproxy/haproxy.cfg asks for.
DRAIN_DELAY_S = 3

TEXT = "".join(f"word{number} " for number in range(25))
EVENTS = list(Reply(TEXT, delta_chars=8).events())
# A second of stream; now and then one of three seconds, which outlasts the delay.
SECOND = [head(), pace(1 / len(EVENTS)), *EVENTS]
LONG = [head(), pace(3 / len(EVENTS)), *EVENTS]
TENTH = [LONG, *[SECOND] * 9]
# Now and then a failure that is retried; one in fifty, so that no exchange meets four of them.
SCRIPT = [*TENTH * 4, Refusal(503), *TENTH] * EXCHANGES


TakeOut = Callable[[Replica | None], Awaitable[None]]
"""What an operator does before a replica is stopped, or, with none, when it serves again."""


@asynccontextmanager
async def behind_haproxy(pair: Sequence[Replica]) -> AsyncIterator[tuple[int, TakeOut]]:
    """HAProxy, which asks the replicas; nobody does anything."""

    async def nothing(_: Replica | None) -> None:
        pass

    async with haproxy(pair) as port:
        yield port, nothing


BALANCED = {"haproxy": behind_haproxy, "nginx": nginx_told}


class Server:
    """A `loopguard serve` that keeps its ports over its restarts."""

    def __init__(self, base_url: str, ledger_url: str) -> None:
        self._base_url = base_url
        self._ledger_url = ledger_url
        self._opened = AsyncExitStack()
        self.ports = (free_port(), free_port())

    async def start(self) -> None:
        port, admin_port = map(str, self.ports)
        self._command = await self._opened.enter_async_context(
            serving(
                self._base_url,
                server__port=port,
                server__admin_port=admin_port,
                server__drain_delay_s=str(DRAIN_DELAY_S),
                ledger__url=self._ledger_url,
            )
        )

    async def in_use(self) -> None:
        """Wait until the balancer sends it exchanges."""
        while not (await metrics(self._command.admin))["loopguard_exchanges_in_flight"]:  # noqa: ASYNC110 - asking takes its time
            await asyncio.sleep(0)

    async def stop(self) -> None:
        """End it as a cluster does; it ends well, and nothing that ran was cut."""
        self._command.terminate()
        assert await self._command.ended() == 0
        assert not [line for line in self._command.lines if '"outcome": "drained"' in line]
        await self._opened.aclose()


@asynccontextmanager
async def replicas(base_url: str, ledger_url: str) -> AsyncIterator[list[Server]]:
    """Two of them, stopped at the end."""
    pair = [Server(base_url, ledger_url) for _ in range(2)]
    for replica in pair:
        await replica.start()
    try:
        yield pair
    finally:
        for replica in pair:
            await replica._opened.aclose()


class Load:
    """Callers that ask one thing after another until they are told to end.

    Attributes:
        answered: exchanges that were answered well, by mode.
        failures: what the others got.
    """

    def __init__(self, port: int) -> None:
        self.answered: Counter[str] = Counter()
        self.failures: list[str] = []
        self.enough = False
        self._url = f"http://127.0.0.1:{port}/v1/chat/completions"

    async def run(self, first: int) -> None:
        modes = itertools.islice(itertools.cycle(MODES), first % len(MODES), None)
        async with aiohttp.ClientSession() as session:
            while not self.enough:
                mode = next(modes)
                try:
                    await self._ask(session, mode)
                except (aiohttp.ClientError, ConnectionError, AssertionError) as error:
                    self.failures.append(f"{mode}: {error!r}")
                else:
                    self.answered[mode] += 1

    async def _ask(self, session: aiohttp.ClientSession, mode: str) -> None:
        body, headers = asked(mode)
        async with session.post(self._url, json=body, headers=headers) as response:
            read = await response.read()
            assert response.status == 200, (response.status, read)
        assert content_of(read) == TEXT


async def booked(ledger_url: str, answered: int) -> list[dict[str, Any]]:
    """The rows of exchanges, once there are as many as were answered; no more come."""
    database = Database(ledger_url)
    try:
        async with asyncio.timeout(PATIENCE_S):
            # The last of them are written half a second later.
            while len(rows := [row async for row in read_exchanges(database)]) < answered:
                pass
    finally:
        await database.close()
    assert len(rows) == answered
    return rows


@pytest.mark.parametrize("balancer", BALANCED)
async def test_no_exchange_fails(balancer: str, postgres_server) -> None:
    """Every exchange is answered whole, whichever replica is restarted meanwhile, and recorded."""
    if not installed(balancer):
        pytest.skip(f"{balancer} is not installed (Debian's package of that name)")
    ledger_url = postgres_server.empty_database()
    restarts = 0
    async with (
        FakeOpenRouter(SCRIPT) as fake,
        replicas(fake.base_url, ledger_url) as pair,
        BALANCED[balancer]([replica.ports for replica in pair]) as (port, take_out),
    ):
        load = Load(port)
        async with asyncio.TaskGroup() as callers:
            for number in range(CALLERS):
                callers.create_task(load.run(number))
            while not restarts or load.answered.total() < EXCHANGES:
                replica = pair[restarts % len(pair)]
                await replica.in_use()
                await take_out(replica.ports)
                await replica.stop()
                await replica.start()
                await take_out(None)
                await replica.in_use()
                restarts += 1
            load.enough = True
        print(
            f"{balancer}: {load.answered.total()} exchanges ({dict(load.answered)}) over "
            f"{restarts} restarts: {len(load.failures)} failed"
        )
        assert not load.failures
        rows = await booked(ledger_url, load.answered.total())
    assert {row["outcome"] for row in rows} == {"completed"}
    assert {row["attempts"] for row in rows} > {1}
