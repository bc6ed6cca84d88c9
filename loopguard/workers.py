"""Several workers: fresh processes, replaced when they die or hang, given connections by this one.

The command's own process serves no caller. It accepts every connection and passes the file
descriptor on to the worker that has the fewest; from then on the connection is the worker's alone,
and a chunk costs what it costs without workers. Left to the kernel, callers that connect at once
are spread by chance: of 50, one of two workers gets 30 to 38, for as long as their streams last.

A worker tells ten times a second how many connections have ended, whether or not any have: one that
tells nothing does not turn its event loop. It is given no connection then, and after a while ended.

Blind spots: a connection that was handed to a worker which is killed before it takes it is lost, as
one that it had taken is. A connection counts whether or not it asks for anything. Nobody watches
the command's own process but whoever asks it for `/healthz`.
"""

import asyncio
import contextlib
import logging
import os
import socket
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

from loopguard.channel import Channel, Failed, Gone
from loopguard.errors import ModelResponseLoop
from loopguard.log import fields
from loopguard.metrics import FOLDER_VARIABLE, CommandMetrics, forget_gauges
from loopguard.proxy.fleet import Fleet
from loopguard.proxy.in_use import InUse
from loopguard.proxy.listener import BACKLOG
from loopguard.proxy.sight import Sights
from loopguard.settings import ConfigurationError, Settings

_MEMORY = Path("/dev/shm")  # noqa: S108  a folder of its own is made in it, for this user alone
"""Files that are written to many times a second, and are worth nothing after the end."""

_LAUNCH_S = 30.0
"""A worker serves a second after its launch, on a busy machine several."""

_READ_S = 5.0
"""What reading the ledger may take; a second is much for a run."""

_TELL_S = 0.2
"""What a caller whose model looped waits for, at the most, until every worker knows."""

_END_S = 12.0
"""What a drained worker needs to close connections (2 s) and to write its last rows (5 s)."""

_SETTLED_S = 60.0
"""A worker that lived as long is replaced at once."""

_FIRST_WAIT_S, _LAST_WAIT_S = 1.0, 30.0
"""One that did not is replaced after a wait, which doubles while they keep dying so young."""

_LATE_S = 2
"""A worker that is silent for so long gets no callers that others can serve. A large request, or a
machine that is short of processor, holds an event loop up for some tenths of it."""

_HUNG_S = 10
"""One that is silent for so long does not come back. Ending it breaks its streams off, so this is
far above any stall that was seen; callers, who wait for minutes, have not yet given up."""

_PAUSE_S = 1.0
"""Without a free file descriptor nothing can be accepted; then it is tried again so much later."""

_log = logging.getLogger("loopguard")


class CannotStart(RuntimeError):
    """A worker ended, or did not begin to serve, at the launch."""


TellOthers: TypeAlias = Callable[["_RemoteWorker", bytes, ModelResponseLoop, int], Awaitable[None]]
"""Lets the other workers remember what has looped at this one."""


class _RemoteWorker:
    """A worker in a process of its own, a `loopguard.proxy.fleet.Worker`.

    Args:
        number: of its place, from 1; its successor has the same.
        settings: its configuration.
        started: its process.
        channel: to it.
        to: brings it connections.
        tell_others: takes what it remembers.

    Attributes:
        number: likewise.
        pid: of its process.
    """

    def __init__(
        self,
        number: int,
        settings: Settings,
        started: asyncio.subprocess.Process,
        *,
        channel: Channel,
        to: socket.socket,
        tell_others: TellOthers,
    ) -> None:
        self.number = number
        self.pid = started.pid
        self._handed = 0
        self._ended = 0
        self._silent_s = 0
        self._settings = settings
        self._started = started
        self._channel = channel
        self._to = to
        channel.answers |= {
            "connections_ended": self._take_ended,
            "looped": partial(tell_others, self),
        }
        self._running = asyncio.create_task(channel.run())
        self._watching: asyncio.Task[None] | None = None

    @property
    def connections(self) -> int:
        """Those that it has, as far as that is known here."""
        return self._handed - self._ended

    @property
    def late(self) -> bool:
        """Whether it has not been heard of for a while."""
        return self._silent_s >= _LATE_S

    @classmethod
    async def launch(
        cls, number: int, settings: Settings, folder: str, tell_others: TellOthers
    ) -> Self:
        """Start a process, which serves nobody yet and counts in files of the folder.

        Raises:
            OSError: no process can be started.
        """
        ours, theirs = socket.socketpair()
        to, handed = socket.socketpair()
        to.settimeout(0)
        with theirs, handed:
            ends = (theirs.fileno(), handed.fileno())
            started = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # what lies in the present folder is not imported
                "-m",
                "loopguard.worker",
                *map(str, (number, *ends)),
                env=os.environ | {FOLDER_VARIABLE: folder},
                pass_fds=ends,
                stdin=asyncio.subprocess.DEVNULL,
            )
        channel = await Channel.open(ours)
        return cls(number, settings, started, channel=channel, to=to, tell_others=tell_others)

    async def serve(self) -> None:
        """Let it begin.

        Raises:
            ConfigurationError: it cannot use the ledger.
            CannotStart: it has ended, or does not answer.
        """
        try:
            faults = await self._channel.ask("serve", self._settings, within_s=_LAUNCH_S)
        except (Gone, Failed) as error:
            raise CannotStart(f"worker {self.number} has not begun to serve") from error
        if faults:
            raise ConfigurationError(faults)
        self._watching = asyncio.create_task(self._end_once_hung())

    async def _end_once_hung(self) -> None:
        """Kill it when it has been silent for too long.

        Counted in seconds that this process has seen itself: where the whole machine stood still,
        the worker had no time to speak either.
        """
        told = fields(worker=self.number, pid=self.pid)
        while self._silent_s < _HUNG_S:
            await asyncio.sleep(1)
            self._silent_s += 1
            if self._silent_s == _LATE_S:
                _log.warning("a worker is silent and gets no callers", extra=told)
        _log.error("a worker hangs and is killed", extra=told)
        self._started.kill()

    def hand(self, connection: socket.socket) -> bool:
        """Give it a connection; tell whether it could be given."""
        try:
            socket.send_fds(self._to, [b"\0"], [connection.fileno()])
        except OSError:
            return False
        self._handed += 1
        return True

    async def ended(self) -> int:
        """Wait for its end; the status, or the number of the signal below zero."""
        status = await self._started.wait()
        if self._watching is not None:
            self._watching.cancel()
        await self._running
        self._to.close()
        return status

    async def end(self) -> None:
        """End it, drained or not, and wait until it has ended."""
        self._channel.close()
        try:
            async with asyncio.timeout(_END_S):
                await self.ended()
        except TimeoutError:
            _log.error("a worker does not end and is killed", extra=fields(worker=self.number))
            await self.kill()

    async def kill(self) -> None:
        """End it without any further word, and wait until it has ended."""
        with contextlib.suppress(ProcessLookupError):
            self._started.kill()
        await self.ended()

    async def sights(self) -> Sights:
        """What `Api.sights` says; likewise the others."""
        sights: Sights = await self._channel.ask("sights")
        return sights

    async def refresh(self) -> None:
        await self._channel.ask("refresh")

    async def flush(self) -> None:
        await self._channel.ask("flush", within_s=_READ_S)

    async def settle(self, run: str, within_s: float) -> None:
        await self._channel.ask("settle", run, within_s, within_s=within_s + _READ_S)

    async def run_figures(self, run: str) -> dict[str, object]:
        figures: dict[str, object] = await self._channel.ask("run_figures", run, within_s=_READ_S)
        return figures

    async def looped(self, request: bytes, error: ModelResponseLoop, replies: int) -> None:
        await self._channel.ask("looped", request, error, replies, within_s=_TELL_S)

    async def use(self, settings: Settings) -> None:
        await self._channel.ask("use", settings)
        self._settings = settings

    async def drain(self) -> None:
        server = self._settings.server
        limit_s = server.drain_delay_s + server.drain_s + _END_S
        await self._channel.ask("drain", within_s=limit_s)

    async def _take_ended(self, connections: int) -> None:
        self._ended = connections
        self._silent_s = 0


class Workers:
    """The worker processes of a command; an asynchronous context manager.

    Args:
        in_use: the configuration.
        fleet: kept up to date with who serves.
        metrics: told the same.
        bound: where callers come.

    Attributes:
        folder: of the files in which the workers count, once entered.
    """

    def __init__(
        self,
        in_use: InUse,
        fleet: Fleet,
        metrics: CommandMetrics,
        bound: Sequence[socket.socket],
    ) -> None:
        self._in_use = in_use
        self._fleet = fleet
        self._metrics = metrics
        self._bound = bound
        self._serving: list[_RemoteWorker] = []
        self._keeping: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        """Start them all.

        Raises:
            OSError: somebody else listens at the address, or no process can be started.
            ConfigurationError: the ledger cannot be used.
            CannotStart: a worker ended at once.
        """
        memory = _MEMORY if os.access(_MEMORY, os.W_OK) else None
        self._counts = tempfile.TemporaryDirectory(prefix="loopguard-", dir=memory)
        self.folder = self._counts.name
        try:
            for place in self._bound:
                place.settimeout(0)
                place.listen(BACKLOG)
            await self._start_all()
        except BaseException:
            await self._close()
            raise
        self._keeping = [asyncio.create_task(self._keep(worker)) for worker in self._serving]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._close()

    async def _close(self) -> None:
        self._pause()
        for keeping in self._keeping:
            keeping.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)
        await asyncio.gather(*(worker.end() for worker in self._serving))
        self._counts.cleanup()

    async def _start_all(self) -> None:
        await self._start(1)  # alone, since it may have to make the ledger
        others = range(2, self._in_use.settings.server.workers + 1)
        for started in await asyncio.gather(*map(self._start, others), return_exceptions=True):
            if isinstance(started, BaseException):
                raise started

    async def _start(self, number: int) -> _RemoteWorker:
        """Start a worker and let callers come to it."""
        settings = self._in_use.settings
        worker = await _RemoteWorker.launch(number, settings, self.folder, self._tell_others)
        try:
            await worker.serve()
            while settings is not self._in_use.settings:  # it was read again meanwhile
                settings = self._in_use.settings
                await worker.use(settings)
        except BaseException:
            await worker.kill()
            raise
        _log.info("a worker serves", extra=fields(worker=number, pid=worker.pid))
        self._serving.append(worker)
        self._fleet.workers.append(worker)
        self._changed()
        return worker

    async def _keep(self, worker: _RemoteWorker) -> None:
        """Replace a worker whenever it dies, ever later while it dies young."""
        wait_s = 0.0
        while True:
            served_at = time.monotonic()
            status = await worker.ended()
            self._serving.remove(worker)
            self._fleet.workers.remove(worker)
            forget_gauges(worker.number, self.folder)
            self._changed()
            if self._fleet.draining:
                return
            self._metrics.worker_died()
            told = fields(worker=worker.number, pid=worker.pid, status=status)
            _log.error("a worker has died and is replaced", extra=told)
            if time.monotonic() - served_at > _SETTLED_S:
                wait_s = 0.0
            worker, wait_s = await self._replace(worker.number, wait_s)

    async def _replace(self, number: int, wait_s: float) -> tuple[_RemoteWorker, float]:
        """Start a worker after a wait, and again until one serves; with it the next wait."""
        while True:
            await asyncio.sleep(wait_s)
            wait_s = min(max(2 * wait_s, _FIRST_WAIT_S), _LAST_WAIT_S)
            try:
                return await self._start(number), wait_s
            except (OSError, ConfigurationError, CannotStart) as fault:
                told = fields(worker=number, next_try_s=wait_s)
                _log.error("no worker can be started: %s", fault, extra=told)

    def _changed(self) -> None:
        """Workers have come or gone; without any, callers wait in the kernel's queue."""
        self._metrics.workers_serve(len(self._serving))
        self._pause()
        if self._serving:
            self._listen()

    def _listen(self) -> None:
        for place in self._bound:
            asyncio.get_running_loop().add_reader(place, self._accept, place)

    def _pause(self) -> None:
        for place in self._bound:
            asyncio.get_running_loop().remove_reader(place)

    def _accept(self, place: socket.socket) -> None:
        """Take one connection and give it to the worker that has the fewest, a late one last."""
        try:
            connection, _ = place.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:
            _log.exception("no connection can be accepted for a while")
            self._pause()
            asyncio.get_running_loop().call_later(_PAUSE_S, self._changed)
            return
        with connection:
            for worker in sorted(self._serving, key=lambda each: (each.late, each.connections)):
                if worker.hand(connection):
                    return

    async def _tell_others(
        self, teller: _RemoteWorker, request: bytes, error: ModelResponseLoop, replies: int
    ) -> None:
        others = [worker for worker in self._serving if worker is not teller]
        asked = (worker.looped(request, error, replies) for worker in others)
        await asyncio.gather(*asked, return_exceptions=True)
