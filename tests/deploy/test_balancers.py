"""Streams, departures and whole replies through the balancers that are shipped, with real ones."""

import asyncio
import os
import statistics
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.deploy.balancers import (
    BALANCERS,
    HAPROXY,
    Replica,
    haproxy_environment,
    installed,
    nginx_folder,
)
from tests.end_to_end.conftest import Guard, Guarded
from tests.end_to_end.raw_caller import REQUEST, STREAM, asked, connected, content_of
from tests.fake_openrouter import DONE, Message, Reply, head, stall, wait
from tests.ports import free_port

pytestmark = pytest.mark.parametrize("balancer", BALANCERS)

# A caller's leaving crosses two processes; issue 2 gives loopguard a tenth of it.
LEFT_S = 1.0

# An event takes 0.2 ms; a balancer or a kernel that waits to fill a packet waits for 200.
UNDELAYED_S = 0.1


@pytest.fixture(autouse=True)
def _there(balancer: str) -> None:
    if not installed(balancer):
        pytest.skip(f"{balancer} is not installed (Debian's package of that name)")


def replica(ours: Guarded) -> Replica:
    return ours.loopguard.api_port, ours.loopguard.admin_port


@asynccontextmanager
async def balanced(balancer: str, ours: Guarded) -> AsyncIterator[int]:
    """The balancer in front of one loopguard and of one that is not there."""
    async with BALANCERS[balancer]([replica(ours), (free_port(), free_port())]) as port:
        yield port


def test_accepted(balancer: str) -> None:
    """The shipped file is accepted without a warning."""
    replicas = [(8080, 8081), (8082, 8083)]
    if balancer == "haproxy":
        environ = os.environ | haproxy_environment(8000, replicas)
        words = ["haproxy", "-c", "-dW", "-f", str(HAPROXY)]
        for environment in (os.environ, environ):
            judged = subprocess.run(words, env=environment, capture_output=True, check=False)
            assert judged.returncode == 0, judged.stderr
    else:
        with nginx_folder(free_port(), replicas) as folder:
            words = ["nginx", "-t", "-p", str(folder), "-c", str(folder / "nginx.conf")]
            judged = subprocess.run(words, capture_output=True, text=True, check=False)
        assert judged.returncode == 0, judged.stderr
        assert "[warn]" not in judged.stderr


async def test_each_event_arrives_by_itself(balancer: str, guarded: Guard) -> None:
    """A live stream's next event is written only when its last one has arrived, and arrives."""
    words = [f"word{number:02} " for number in range(60)]
    comment, *events = Reply("".join(words), delta_chars=len(words[0])).events()
    turns = [asyncio.Event() for _ in words]
    script = [head(), comment]
    for turn, event in zip(turns, events, strict=False):
        script += [wait(turn), event]
    waits_s = []
    async with (
        guarded([[*script, *events[len(words) :]]]) as ours,
        balanced(balancer, ours) as port,
        connected(port) as caller,
    ):
        await caller.send(STREAM, headers={"X-Loopguard-Relay": "live"})
        for turn, word in zip(turns, words, strict=True):
            written_at = time.perf_counter()
            turn.set()
            await caller.until(word.encode())
            waits_s.append(time.perf_counter() - written_at)
        assert DONE in await caller.whole()
    wait_s = statistics.median(waits_s)
    print(f"{balancer}: an event takes {wait_s * 1e3:.2f} ms")
    assert wait_s < UNDELAYED_S


@pytest.mark.parametrize("phase", ["silent", "begun"])
@pytest.mark.parametrize("mode", ["held", "live", "whole"])
async def test_leaving_reaches_the_upstream(
    balancer: str, mode: str, phase: str, guarded: Guard
) -> None:
    """A caller that leaves closes the upstream, before the first byte and in mid-stream."""
    events = list(Reply("some words of an answer that goes on for a while").events())
    script = [stall] if phase == "silent" else [head(), *events[:6], stall]
    body, headers = asked(mode)
    async with (
        guarded([script]) as ours,
        balanced(balancer, ours) as port,
        connected(port) as caller,
    ):
        await caller.send(body, headers=headers)
        attempt = await ours.fake.attempt(1)
        if (mode, phase) == ("live", "begun"):
            await caller.until(b"ds of an")
        caller.leave()
        left_s = await attempt.left() - caller.left_at
    print(f"{balancer}, {mode}, {phase}: {left_s * 1e3:.1f} ms")
    assert left_s < LEFT_S
    assert len(ours.fake.attempts) == 1


@pytest.mark.parametrize("mode", ["held", "live", "whole"])
async def test_large_bodies_pass(balancer: str, mode: str, guarded: Guard) -> None:
    """A request of 900 kB and a reply of 200 kB pass whole."""
    text = "".join(f"word{number} " for number in range(20_000))
    body, headers = asked(mode)
    async with (
        guarded([Reply(Message(text), delta_chars=2_000)]) as ours,
        balanced(balancer, ours) as port,
        connected(port) as caller,
    ):
        prompt = [{"role": "user", "content": "x" * 900_000}]
        await caller.send(body | {"messages": prompt}, headers=headers)
        await caller.whole()
        assert caller.status == 200
        assert content_of(caller.body) == text
        assert ours.fake.attempts[0].json["messages"] == prompt


async def test_sent_once(balancer: str, guarded: Guard) -> None:
    """A request that a replica took and did not answer is sent to no other."""
    taken = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.read(1):
            taken.append(await reader.readuntil(b"hello"))
        writer.close()

    async with await asyncio.start_server(take, "127.0.0.1", 0) as dead:
        port = dead.sockets[0].getsockname()[1]
        async with guarded([Reply("never")]) as ours:
            admin = ours.loopguard.admin_port
            async with (
                BALANCERS[balancer]([(port, admin), (port, admin)]) as front,
                connected(front) as caller,
            ):
                await caller.send(REQUEST)
                assert await caller.head() == 502
    assert len(taken) == 1


async def test_refused_connection(balancer: str, guarded: Guard) -> None:
    """A replica that is gone costs no caller anything: another one is asked."""
    async with guarded([Reply("The good answer.")]) as ours, balanced(balancer, ours) as port:
        for _ in range(6):
            async with connected(port) as caller:
                await caller.send(REQUEST)
                assert b"The good answer." in await caller.whole()
                assert caller.status == 200
