"""What is asked of every relay, and which figures are taken of it.

A load is a coroutine that puts itself on one relay and returns its figures, in seconds, bytes and
counts. Processor time is of the relay's process tree, whatever it does: connecting, delivering,
writing its ledger and its log. Chunks are those that the upstream sent.
"""

import asyncio
import json
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from statistics import median

from tests.benchmarks.callers import Caller, call, call_spread, ended, told
from tests.benchmarks.figures import percentile
from tests.benchmarks.launch import CORES, cpu_s, rss_bytes
from tests.benchmarks.relays import Relay
from tests.benchmarks.upstream import DELTA_CHARS, TEXTS, Asked

PACED_STREAMS, PACED_PER_S = 50, 50
SLOW_STREAMS, SLOW_PER_S = 10, 10
BULK_STREAMS, BULK_CHUNKS = 10, 5_000
BURST_CALLERS, BURST_CHUNKS = 50, 10
BURSTS_PER_S = 2
SHORT_CALLERS, SHORT_CHUNKS = 16, 20
WHOLE_CALLERS, WHOLE_CHARS = 4, 60_000
IDLE_STREAMS = 200
STALL_STREAMS, STALL_PER_S = 200, 10
WITNESS_PER_S = 200
HELD_STREAMS, HELD_CHARS = 1_000, 40_000
WORKERS_CALLERS = 16

STEADY_PER_S = 2_500
"""Chunks in all: what 50 streams x 50/s are, however many streams share them."""

STEADY_APART_S = 11 / STEADY_PER_S
"""Longer than any relay needs to open a stream, and a chunk of all streams apart in their phase."""

STREAMS_GROWTH = (10, 100, 1_000)
CHARS_GROWTH = (1_000, 10_000, 50_000, 249_500)
"""The last is the longest text that there is."""

CHARS_CHUNKS = 100_000
"""Each length of a reply is asked for until so many chunks have come."""

LEAVING_APART_S = 0.005
CLOSE_TIMEOUT_S = 5.0
"""An upstream that has not seen the close by then has not seen it, for these figures."""

_WHOLE = Asked(WHOLE_CHARS // DELTA_CHARS)
_LOOK_S = 0.05
_STALL = re.compile(rb"^loopguard_event_loop_longest_stall_seconds(?:{[^}]*})? (\S+)", re.MULTILINE)

Taken = dict[str, float]


@dataclass(frozen=True)
class Upstream:
    """The endpoint behind the relays.

    Attributes:
        port: where it listens.
        pid: of its process.
    """

    port: int
    pid: int

    async def counts(self, path: str = "/counts") -> dict[str, object]:
        """What it has sent, and to whom."""
        counted: dict[str, object] = json.loads(await told(self.port, path))
        return counted

    async def sent(self) -> int:
        """Chunks so far."""
        return int((await self.counts())["sent"])  # type: ignore[call-overload]

    async def all_silent(self, streams: int) -> None:
        """Wait until so many streams have nothing more to send."""
        while (await self.counts())["silent"] != streams:  # noqa: ASYNC110  of another process
            await asyncio.sleep(_LOOK_S)

    async def release(self) -> None:
        """End the silent streams."""
        await self.counts("/release")


Load = Callable[[Relay, Upstream, float], Awaitable[Taken]]
"""Takes the seconds that it may last, roughly."""


class Spent:
    """What a relay has used since this was made."""

    def __init__(self, relay: Relay) -> None:
        self._pid = relay.pid
        self._cpu_s = cpu_s(relay.pid) if relay.pid else 0.0
        self._began_at = time.perf_counter()

    @property
    def wall_s(self) -> float:
        """Seconds of the clock on the wall."""
        return time.perf_counter() - self._began_at

    def per(self, units: float, name: str) -> Taken:
        """Processor time for each of so many units; nothing where there is no relay."""
        return {name: (cpu_s(self._pid) - self._cpu_s) / units} if self._pid else {}


@asynccontextmanager
async def _watched_memory(relay: Relay) -> AsyncIterator[Taken]:
    """Take the most memory that a relay has resident meanwhile."""
    most: Taken = {}

    async def watch(pid: int) -> None:
        while True:
            most["loaded_bytes"] = max(most.get("loaded_bytes", 0), rss_bytes(pid))
            await asyncio.sleep(_LOOK_S)

    watching = asyncio.create_task(watch(relay.pid)) if relay.pid else None
    try:
        yield most
    finally:
        if watching:
            watching.cancel()


def _waits(name: str, waited_s: list[float]) -> Taken:
    """Median, 99th percentile and the longest of some times."""
    return {
        f"{name}_median_s": median(waited_s),
        f"{name}_p99_s": percentile(waited_s, 0.99),
        f"{name}_longest_s": max(waited_s),
    }


def _texts(streams: int, chunks: int, per_s: float = 0, *, ends: bool = True) -> list[Asked]:
    return [
        Asked(chunks, per_s, text=number % TEXTS, ends=ends, number=number)
        for number in range(streams)
    ]


async def paced(relay: Relay, _: Upstream, seconds: float) -> Taken:
    """Streams of lone chunks, begun evenly over the time between two chunks."""
    chunks = int(seconds * PACED_PER_S)
    spent = Spent(relay)
    async with _watched_memory(relay) as memory:
        many = _texts(PACED_STREAMS, chunks, PACED_PER_S)
        apart_s = 1 / PACED_PER_S / PACED_STREAMS
        await ended(await call_spread(relay.port, relay.headers, many, apart_s))
    return spent.per(PACED_STREAMS * chunks, "chunk_s") | memory


async def bulk(relay: Relay, _: Upstream, seconds: float) -> Taken:
    """Few long replies, as fast as they are taken."""
    spent = Spent(relay)
    many = _texts(BULK_STREAMS, BULK_CHUNKS)
    await ended(await call_spread(relay.port, relay.headers, many, 0))
    return spent.per(BULK_STREAMS * BULK_CHUNKS, "chunk_s")


async def slow(relay: Relay, _: Upstream, seconds: float) -> Taken:
    """Few slow streams, whose chunks say when they were sent. Held, they all come at the end."""
    chunks = int(seconds * SLOW_PER_S)
    spent = Spent(relay)
    many = [Asked(chunks, SLOW_PER_S, stamped=True) for _ in range(SLOW_STREAMS)]
    callers = await call_spread(relay.port, relay.headers, many, 1 / SLOW_PER_S / SLOW_STREAMS)
    await ended(callers)
    taken = spent.per(SLOW_STREAMS * chunks, "chunk_s")
    delays_s = [delay_ns / 1e9 for caller in callers for delay_ns in caller.delays_ns]
    return taken | _waits("delay", delays_s)


async def connecting(relay: Relay, _: Upstream, seconds: float) -> Taken:
    """Callers that connect at once, for a reply that is there at once."""
    first_s: list[float] = []
    bursts = max(int(seconds * BURSTS_PER_S), 1)
    spent = Spent(relay)
    for _burst in range(bursts):
        began_ns = time.monotonic_ns()
        calls = (call(relay.port, relay.headers, a) for a in _texts(BURST_CALLERS, BURST_CHUNKS))
        callers = await asyncio.gather(*calls)
        await ended(callers)
        first_s += [(caller.first_ns - began_ns) / 1e9 for caller in callers]
    taken = spent.per(bursts * BURST_CALLERS, "request_s")
    return taken | _waits("first_byte", first_s)


async def _in_turns(relay: Relay, callers: int, seconds: float, asked: Asked, **how: bool) -> Taken:
    """So many callers, each asking again when it has its reply."""
    numbers = count()
    spent = Spent(relay)

    async def ask_in_turns() -> None:
        while spent.wall_s < seconds:
            next(numbers)
            await (await call(relay.port, relay.headers, asked, **how)).done

    await asyncio.gather(*(ask_in_turns() for _ in range(callers)))
    requests = next(numbers)
    return spent.per(requests, "request_s") | {"requests_per_s": requests / spent.wall_s}


async def short(relay: Relay, _: Upstream, seconds: float) -> Taken:
    """Short streams, one after the other."""
    return await _in_turns(relay, SHORT_CALLERS, seconds, Asked(SHORT_CHUNKS))


async def whole(relay: Relay, _: Upstream, seconds: float) -> Taken:
    """Long replies to callers that want no stream."""
    return await _in_turns(relay, WHOLE_CALLERS, seconds, _WHOLE, stream=False)


@contextmanager
def _ends_on(cores: Iterable[int], upstream: Upstream) -> Iterator[None]:
    """Let the callers and the upstream run on these cores."""
    before = os.sched_getaffinity(0)
    for pid in (0, upstream.pid):
        os.sched_setaffinity(pid, cores)
    yield
    for pid in (0, upstream.pid):
        os.sched_setaffinity(pid, before)


async def workers(relay: Relay, upstream: Upstream, seconds: float) -> Taken:
    """Whole replies, which cost the ends the least, for as many callers as fill every worker."""
    with _ends_on(CORES, upstream):
        return await _in_turns(relay, WORKERS_CALLERS, seconds, _WHOLE, stream=False)


async def idle(relay: Relay, upstream: Upstream, seconds: float) -> Taken:
    """Streams that have begun and are silent; then their callers leave."""
    many = _texts(IDLE_STREAMS, 1, ends=False)
    callers = await call_spread(relay.port, relay.headers, many, 0)
    await upstream.all_silent(IDLE_STREAMS)
    spent = Spent(relay)
    await asyncio.sleep(seconds)
    taken = spent.per(IDLE_STREAMS * seconds, "stream_second_s")
    if relay.pid:
        taken["loaded_bytes"] = rss_bytes(relay.pid)
    for caller in callers:
        caller.leave()
        await asyncio.sleep(LEAVING_APART_S)
    closes_s = await _closes_s(upstream, callers)
    await upstream.release()
    seen = [close_s for close_s in closes_s if close_s < CLOSE_TIMEOUT_S]
    taken["close_share"] = len(seen) / IDLE_STREAMS
    return taken | (_waits("close", seen) if seen else {})


async def _closes_s(upstream: Upstream, callers: list[Caller]) -> list[float]:
    """From each caller's leaving to when the upstream saw it, by the order of the callers."""
    closed_ns: dict[int, int] = {}
    ends_at = time.monotonic() + CLOSE_TIMEOUT_S
    while len(closed_ns) < len(callers) and time.monotonic() < ends_at:
        told_now = (await upstream.counts())["closed_ns"]
        closed_ns |= {int(number): at for number, at in told_now.items()}  # type: ignore[attr-defined]
        await asyncio.sleep(_LOOK_S)
    return [
        (closed_ns[number] - caller.left_ns) / 1e9 if number in closed_ns else CLOSE_TIMEOUT_S
        for number, caller in enumerate(callers)
    ]


async def stalls(relay: Relay, _: Upstream, seconds: float) -> Taken:
    """Many streams, and among them a fast one whose longest delay shows where the relay stood."""
    asked = Asked(int(seconds * WITNESS_PER_S), WITNESS_PER_S, stamped=True)
    live = {**relay.headers, "X-Loopguard-Relay": "live"}  # a held one would show nothing
    witness = await call(relay.port, live, asked)
    many = _texts(STALL_STREAMS, int(seconds * STALL_PER_S), STALL_PER_S)
    apart_s = 1 / STALL_PER_S / STALL_STREAMS
    callers = await call_spread(relay.port, relay.headers, many, apart_s)
    await ended([witness, *callers])
    taken = _waits("delay", [delay_ns / 1e9 for delay_ns in witness.delays_ns])
    if relay.admin_port:
        stall_s = _STALL.findall(await told(relay.admin_port, "/metrics"))
        taken["own_stall_s"] = max(map(float, stall_s))
    return taken


async def thousand(relay: Relay, upstream: Upstream, seconds: float) -> Taken:
    """Replies that are held at once, all of them to the last character; then they are delivered."""
    assert relay.pid
    many = _texts(HELD_STREAMS, HELD_CHARS // DELTA_CHARS, ends=False)
    async with _watched_memory(relay) as memory:
        callers = await call_spread(relay.port, relay.headers, many, 0)
        await upstream.all_silent(HELD_STREAMS)
        held_bytes = rss_bytes(relay.pid)
        await upstream.release()
        await ended(callers)
    return {"held_bytes": held_bytes, "most_bytes": memory["loaded_bytes"]}


async def streams(relay: Relay, upstream: Upstream, seconds: float, *, number: int) -> Taken:
    """So many streams that share one number of chunks a second, once all of them run."""
    per_s = STEADY_PER_S / number
    chunks = int(per_s * (2 * number * STEADY_APART_S + seconds)) + 2
    many = _texts(number, chunks, per_s)
    callers = await call_spread(relay.port, relay.headers, many, STEADY_APART_S)
    sent, spent = await upstream.sent(), Spent(relay)
    await asyncio.sleep(seconds)
    taken = spent.per(await upstream.sent() - sent, "chunk_s")
    for caller in callers:
        caller.leave()
    await _closes_s(upstream, callers)
    return taken


async def chars(relay: Relay, _: Upstream, seconds: float, *, length: int) -> Taken:
    """Replies of one length in bulk, a few at once."""
    chunks = length // DELTA_CHARS
    replies = CHARS_CHUNKS // chunks
    spent = Spent(relay)
    for begun in range(0, replies, BULK_STREAMS):
        many = [Asked(chunks)] * min(BULK_STREAMS, replies - begun)
        await ended(await call_spread(relay.port, relay.headers, many, 0))
    return spent.per(replies, "reply_s")


PROXIES = ("passthrough", "nginx", "haproxy", "live", "held", "off", "portkey", "litellm")
OURS = ("passthrough", "nginx", "live", "held", "off")

LOADS: Mapping[str, tuple[Load, tuple[str, ...]]] = {
    "paced": (paced, PROXIES),
    "bulk": (bulk, PROXIES),
    "slow": (slow, ("direct", *(name for name in PROXIES if name != "held"))),
    "connecting": (connecting, ("direct", *PROXIES)),
    "short": (short, ("direct", *PROXIES)),
    "whole": (whole, ("direct", *PROXIES)),
    "idle": (idle, PROXIES),
    "stalls": (stalls, ("direct", "passthrough", "nginx", "live", "held")),
    **{f"streams {number}": (partial(streams, number=number), OURS) for number in STREAMS_GROWTH},
    **{f"chars {length}": (partial(chars, length=length), OURS) for length in CHARS_GROWTH},
    "thousand": (thousand, ("held",)),
    "workers": (workers, ("1 worker", "2 workers")),
}
"""Each load by its name, with the relays that it is put on."""
