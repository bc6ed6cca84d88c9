"""What can fail around loopguard: names, the ledger's database, its disk, the clock, the process.

Each row has a process of its own, and does to it what the row says.
"""

import asyncio
import contextlib
import os
import resource
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from subprocess import run
from typing import TypeVar

from loopguard.billing.database import Database
from loopguard.billing.figures import read_entries
from tests.end_to_end.raw_caller import RawCaller, connected, metrics
from tests.fake_openrouter import close, head, loop, stall, wait
from tests.faults.fault import Fault, Try
from tests.faults.ground import CHAT, GOOD, Ground, Reading, Seen, ground, parts, until
from tests.postgres import binaries, postgres

ASKED = 3
"""Exchanges while something is away."""

Held = TypeVar("Held")


@asynccontextmanager
async def outlived(
    folder: Path, *, under: Sequence[str] = (), host: str = "127.0.0.1", **environment: str
) -> AsyncIterator[Ground]:
    """A ground that stands to the end: then the next exchange works, and nothing is left."""
    async with ground(folder, under=under, host=host, **environment) as here:
        yield here
        assert (await here.got_of([GOOD], "whole")).startswith("the reply")
        await here.rest()


REPLY = "the reply, attempt 2"
"""What comes of a loop and a good reply."""


def machine(
    what: str, play: Callable[[Path], object], got: str, recorded: str, lacking: str | None = None
) -> Fault:
    """A row with one try."""
    return Fault(what, "held", got, recorded, [Try("once", play, (got, recorded))], lacking=lacking)


async def ask_loops(here: Ground) -> str:
    """Ask some times, each for a loop and a good reply; what the callers got, once if all alike."""
    got = {(await here.got_of([loop(), GOOD], "held")) for _ in range(ASKED)}
    return " or ".join(sorted(got))


async def backlog(here: Ground) -> float:
    return (await metrics(here.command.admin))["loopguard_ledger_backlog_rows"]


async def caught_up(here: Ground) -> None:
    """Wait until the ledger holds all that was recorded."""
    async with asyncio.timeout(30):
        while await backlog(here):  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.2)


async def entries(url: str) -> list[str]:
    """How each entry stands; an entry that is there twice would be told twice."""
    database = Database(url)
    found = [entry["state"] async for entry in read_entries(database)]
    await database.close()
    return found


@asynccontextmanager
async def in_thread(blocking: contextlib.AbstractContextManager[Held]) -> AsyncIterator[Held]:
    """A context that blocks, entered and left where it holds nobody up."""
    held = await asyncio.to_thread(blocking.__enter__)
    try:
        yield held
    finally:
        await asyncio.to_thread(blocking.__exit__, None, None, None)


async def database_away(folder: Path) -> Seen:
    """Stop a real PostgreSQL while exchanges run, and start it again."""
    async with in_thread(postgres()) as server:
        url = await asyncio.to_thread(server.empty_database)
        async with outlived(folder, ledger__url=url) as here:
            before = await ask_loops(here)
            await asyncio.to_thread(server.stop)
            during = await ask_loops(here)
            assert await backlog(here) >= ASKED
            await asyncio.to_thread(server.start)
            await caught_up(here)
            after = await ask_loops(here)
            await caught_up(here)
            assert {before, during, after} == {REPLY}
            return before, told(await entries(url))


def told(states: list[str]) -> str:
    return f"{len(states)} entries of {3 * ASKED}, {' and '.join(sorted(set(states)))}"


async def disk_full(folder: Path) -> Seen:
    """Fill the file system that the ledger lies on, and make room again."""
    async with in_thread(small_disk(folder)) as disk:
        return await _room_runs_out(disk, lambda here: filled(disk))


async def file_limit(folder: Path) -> Seen:
    """Let no file of the process grow, and let them grow again."""
    return await _room_runs_out(
        folder, lambda here: limited(here.command.pid, resource.RLIMIT_FSIZE, 4096)
    )


async def _room_runs_out(
    folder: Path, without_room: Callable[[Ground], contextlib.AbstractContextManager[None]]
) -> Seen:
    async with outlived(folder) as here:
        before = await ask_loops(here)
        with without_room(here):
            during = await ask_loops(here)
            assert await backlog(here) >= ASKED
        await caught_up(here)
        after = await ask_loops(here)
        await caught_up(here)
        assert {before, during, after} == {REPLY}
        return before, told(await entries(f"sqlite:///{here.ledger}"))


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        run(["umount", "-l", folder], check=True)


@contextmanager
def filled(folder: Path) -> Iterator[None]:
    """No room on a file system."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(512))
    yield
    filler.unlink()


@contextmanager
def limited(pid: int, what: int, soft: int) -> Iterator[None]:
    """A lower limit of a process."""
    before = resource.prlimit(pid, what)
    resource.prlimit(pid, what, (soft, before[1]))
    yield
    resource.prlimit(pid, what, before)


CLOCK = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
DAY_S = 86_400


async def clock_steps(folder: Path, *, step_s: int) -> Seen:
    """Step the wall clock while a reply streams and while a price is owed."""
    offset = folder / "offset"
    offset.write_text("+0")
    under = (
        "env",
        f"LD_PRELOAD={CLOCK}",
        f"FAKETIME_TIMESTAMP_FILE={offset}",
        "FAKETIME_NO_CACHE=1",
        "DONT_FAKE_MONOTONIC=1",
    )
    quick = {
        "ledger__first_look_s": "2",
        "ledger__longest_wait_s": "2",
        "profiles__default__stream_idle_s": "5",
    }
    async with outlived(folder, under=under, **quick) as here:
        reading, stepped = Reading(), asyncio.Event()
        good = parts(CHAT, "live", reading)

        async def wait_for_step(_: object) -> None:
            await stepped.wait()

        script = [[head(), close], [head(), *good.begun, wait_for_step, *good.rest]]
        async with here.calling(script, "live") as (caller, name):
            await caller.until(b"The good")
            offset.write_text(f"{step_s:+d}")
            stepped.set()
            got = await here.got(caller, "live", name)
        await here.next_works()
        # A clock that went back is noticed by the housekeeping, every 30 s.
        await until(lambda: here.entries(name) == {1: "priced"}, 45)
        series = await metrics(here.command.admin)
        assert series["loopguard_ledger_oldest_owed_seconds"] >= 0
        assert series["loopguard_look_up_duration_seconds_sum"] >= 0
        return got, await here.recorded(name)


async def files_run_out(folder: Path) -> Seen:
    """Let callers take every descriptor while others are served, and give them back."""
    async with outlived(folder) as here, contextlib.AsyncExitStack() as stack:
        await here.next_works()
        reading, gate = Reading(), asyncio.Event()
        good = parts(CHAT, "live", reading)

        async def wait_for_gate(_: object) -> None:
            await gate.wait()

        running = [
            await stack.enter_async_context(
                here.calling([[head(), *good.begun, wait_for_gate, *good.rest]], "live")
            )
            for _ in range(ASKED)
        ]
        for caller, _ in running:
            await caller.until(b"The good")
        room = here.command.open_files() + 4
        with limited(here.command.pid, resource.RLIMIT_NOFILE, room):
            async with contextlib.AsyncExitStack() as idle:
                for _ in range(40):
                    await idle.enter_async_context(connected(here.command.port))
                begun_s = processor_s(here)
                await asyncio.sleep(1)  # a listener that spins would use all of it
                spun_s = processor_s(here) - begun_s
                assert spun_s < 0.5, f"{spun_s} s of the processor while nothing could be done"
                gate.set()
                got = {await here.got(caller, "live", name) for caller, name in running}
        recorded = {await here.recorded(name) for _, name in running}
        async with asyncio.timeout(10):
            while True:
                with contextlib.suppress(OSError, EOFError):
                    await here.next_works()
                    break
        return " or ".join(got), " or ".join(recorded)


def processor_s(here: Ground) -> float:
    """What the process has used of the processor."""
    fields = Path(f"/proc/{here.command.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def name_unknown(folder: Path) -> Seen:
    """Ask an upstream whose name nothing knows, and then something does."""
    hosts, resolver = folder / "hosts", folder / "resolv.conf"
    hosts.write_text("127.0.0.1 localhost\n")
    resolver.write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
    own = f"mount --bind {hosts} /etc/hosts && mount --bind {resolver} /etc/resolv.conf"
    under = ("unshare", "--mount", "sh", "-c", f'{own} && exec "$@"', "sh")
    async with outlived(folder, under=under, host="upstream.test", retry__max_attempts="2") as here:
        async with here.calling([GOOD], "held") as (caller, name):
            unknown = await here.got(caller, "held", name)
        recorded = await here.recorded(name)
        with hosts.open("a") as file:
            file.write("127.0.0.1 upstream.test\n")
        async with here.calling([GOOD], "held") as (caller, name):
            known = await here.got(caller, "held", name)
        return f"{unknown}; later {known}", f"{recorded}; later {await here.recorded(name)}"


@asynccontextmanager
async def two_workers(
    folder: Path,
) -> AsyncIterator[tuple[Ground, list[tuple[RawCaller, str]], asyncio.Event]]:
    """Two workers, both of which stream second attempts, that go on when the event is set."""
    async with outlived(folder, server__workers="2") as here, contextlib.AsyncExitStack() as stack:
        gate = asyncio.Event()
        good = parts(CHAT, "live", Reading())
        script = [[head(), close], [head(), *good.begun, wait(gate), *good.rest]]
        running = [
            await stack.enter_async_context(here.calling(script, "live")) for _ in range(2 * ASKED)
        ]
        for caller, _ in running:
            await caller.until(b"The good")
        await until(lambda: all(1 in here.entries(name) for _, name in running))
        yield here, running, gate


async def worker_killed(folder: Path) -> Seen:
    """Kill one of two workers while each of them streams the second attempts of some exchanges."""
    async with two_workers(folder) as (here, running, gate):
        first, _ = await here.command.workers(2)
        os.kill(first, signal.SIGKILL)
        await here.command.workers(3)
        gate.set()
        got = {await here.got(caller, "live", name) for caller, name in running}
        entries = {here.entries(name)[1] for _, name in running}
        return " or ".join(sorted(got)), f"broken ({' or '.join(entries)}) of each"


async def worker_hung(folder: Path) -> Seen:
    """Stop one of two workers for good while both stream; ask on before and after its end."""
    async with two_workers(folder) as (here, running, gate):
        first, _ = await here.command.workers(2)
        os.kill(first, signal.SIGSTOP)
        await here.command.line("a worker is silent")
        await asyncio.gather(*(here.next_works() for _ in range(2 * ASKED)))
        gate.set()
        got = set(
            await asyncio.gather(*(here.got(caller, "live", name) for caller, name in running))
        )
        await here.command.workers(3)
        for _, name in running:
            await here.nothing_left(name)
        entries = {here.entries(name)[1] for _, name in running}
        assert (await metrics(here.command.admin))["loopguard_worker_deaths_total"] == 1
        return " or ".join(sorted(got)), f"broken ({' or '.join(entries)}) of each"


ROOM_BYTES = 40_000_000
NOTE = "x" * 30_000_000
"""A body of this size is within the shipped limit, and is there twice while it is put together."""


async def memory_short(folder: Path) -> Seen:
    """Leave the process less memory than a request's body takes, and give it back."""
    async with outlived(folder) as here:
        await here.next_works()
        room = here.command.address_bytes() + ROOM_BYTES
        with limited(here.command.pid, resource.RLIMIT_AS, room):
            got = {await here.got_of([GOOD], "held", {"note": NOTE}) for _ in range(ASKED)}
        return " or ".join(got), "no exchange"


@asynccontextmanager
async def standing(
    folder: Path, answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
) -> AsyncIterator[Ground]:
    """loopguard in front of a server that treats the connections of one exchange as it pleases."""
    mended = asyncio.Event()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not mended.is_set():
            await answer(reader, writer)
            return
        to_fake = await asyncio.open_connection("127.0.0.1", here.fake.port)
        await asyncio.gather(pass_on(reader, to_fake[1]), pass_on(to_fake[0], writer))

    async with await asyncio.start_server(take, "127.0.0.1", 0) as server:
        base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/api/v1"
        async with outlived(folder, upstream__base_url=base_url, retry__max_attempts="2") as here:
            yield here
            mended.set()


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Write what is read, to the end."""
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(1 << 16):
            writer.write(piece)
    writer.close()


async def closed_at_once(folder: Path) -> Seen:
    """Take each connection and close it."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with standing(folder, answer) as here, here.calling([GOOD], "held") as (caller, name):
        return await here.got(caller, "held", name), await here.recorded(name)


async def answered_early(folder: Path) -> Seen:
    """Refuse a large request when its head has come."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b'{"error":{"code":413,"message":"too large"}}'
        lines = b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
        writer.write(b"HTTP/1.1 413 \r\nContent-Type: application/json\r\n" + lines + body)
        # Closed with bytes unread the connection would be reset, and the answer perhaps with it.
        with contextlib.suppress(ConnectionError):
            while await reader.read(65_536):
                pass
        writer.close()

    async with (
        standing(folder, answer) as here,
        here.calling([GOOD], "held", more={"note": NOTE}) as (caller, name),
    ):
        return await here.got(caller, "held", name), await here.recorded(name)


async def broken_off_unguarded(folder: Path) -> Seen:
    """Break off the answer to a request that is passed through."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + bytes(500))
        writer.close()

    async with standing(folder, answer) as here, connected(here.command.port) as caller:
        await caller.send(method="GET", path="/v1/models")
        return await here.got(caller, "held", ""), "no exchange"


async def killed(folder: Path) -> Seen:
    """Kill the process between two attempts, and start another one on its ledger."""
    async with (
        ground(folder) as here,
        here.calling([loop(), [head(), stall]], "held") as (caller, name),
    ):
        await here.fake.attempt(2)
        await until(lambda: 1 in here.entries(name))  # it is late where the disk is slow
        await here.command.kill()
        got = await here.got(caller, "held", name)
    async with outlived(folder) as again:
        return got, f"looped ({again.entries(name)[1]})"


async def reader_gone(folder: Path) -> Seen:
    """Let nobody read the log any longer."""
    async with outlived(folder) as here:
        transport = here.command._running._transport
        transport.get_pipe_transport(2).close()
        async with here.calling([loop(), GOOD], "held") as (caller, name):
            got = await here.got(caller, "held", name)
        series = await metrics(here.command.admin)
        assert series["loopguard_exchanges_total{completed}"] == 1
        await until(lambda: 1 in here.entries(name))
        return got, f"looped ({here.entries(name)[1]})"


ROOT = None if os.geteuid() == 0 else "only root can mount"
POSTGRES = None if binaries() else "PostgreSQL is not installed"
FAKETIME = None if CLOCK else "libfaketime is not installed"

MACHINE = [
    machine(
        "the upstream's name is unknown, then known",
        name_unknown,
        "502 upstream_unusable; later the reply",
        "broken, broken; later completed",
        ROOT,
    ),
    machine(
        "the database stops and comes back", database_away, REPLY, "9 entries of 9, owed", POSTGRES
    ),
    machine(
        "the ledger's disk is full for a while", disk_full, REPLY, "9 entries of 9, owed", ROOT
    ),
    machine(
        "the ledger's files may not grow for a while", file_limit, REPLY, "9 entries of 9, owed"
    ),
    machine(
        "the clock steps a day forwards",
        partial(clock_steps, step_s=DAY_S),
        REPLY,
        "broken (priced), completed",
        FAKETIME,
    ),
    machine(
        "the clock steps a day backwards",
        partial(clock_steps, step_s=-DAY_S),
        REPLY,
        "broken (priced), completed",
        FAKETIME,
    ),
    machine(
        "the file descriptors run out while replies stream", files_run_out, "the reply", "completed"
    ),
    machine(
        "one of two workers is killed while both stream",
        worker_killed,
        "cut off or the reply, attempt 2",
        "broken (owed) of each",
    ),
    machine(
        "one of two workers hangs while both stream",
        worker_hung,
        "cut off or the reply, attempt 2",
        "broken (owed) of each",
    ),
    machine("there is no memory for a request", memory_short, "500 server", "no exchange"),
    machine(
        "the upstream closes each connection at once",
        closed_at_once,
        "502 upstream_unusable",
        "broken (no_id), broken (no_id)",
    ),
    machine(
        "the upstream refuses 30 MB before it has read them",
        answered_early,
        "413 the upstream's own error",
        "refused",
    ),
    machine(
        "the upstream breaks off an answer that is passed through",
        broken_off_unguarded,
        "cut off",
        "no exchange",
    ),
    machine("the process is killed between two attempts", killed, "closed", "looped (owed)"),
    machine("nobody reads the log", reader_gone, REPLY, "looped (owed)"),
]
