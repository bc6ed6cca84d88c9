"""A worker as a process of its own: ``python -m loopguard.worker``, started by `loopguard.workers`.

It is told the configuration over its channel, takes the connections that it is handed, and ends
when its command is gone. Signals are the command's: a terminal and an init system send them to
every process at once, and each that drained by itself would leave the others its callers.
"""

import asyncio
import contextlib
import gc
import os
import shutil
import signal
import socket
import sys

import uvloop
from prometheus_client import CollectorRegistry

from loopguard import log
from loopguard.app import Api
from loopguard.channel import Channel, Gone
from loopguard.errors import ModelResponseLoop
from loopguard.metrics import FOLDER_VARIABLE, Metrics, keep_in_files
from loopguard.settings import ConfigurationError, Settings

# So often is told how many connections have ended: often enough to spread the next ones well. It
# also says that the event loop turns, so it is told when there is nothing new.
_TELL_S = 0.1


class _Worker:
    """Serves the connections that it is handed.

    Args:
        channel: to the command.
        handed: brings a file descriptor with each byte.
    """

    def __init__(self, channel: Channel, handed: socket.socket) -> None:
        self._channel = channel
        self._handed = handed
        self._opened = contextlib.AsyncExitStack()
        self._api: Api | None = None
        self._drained = False
        self._received = 0
        channel.answers["serve"] = self.serve

    async def serve(self, settings: Settings) -> tuple[str, ...]:
        """Begin; the answer is what is wrong with the configuration."""
        log.configure(settings.log.level, settings.log.format)
        api = Api(settings, Metrics(CollectorRegistry()), self._tell_looped)
        try:
            await self._opened.enter_async_context(api)
        except ConfigurationError as error:
            return error.faults
        self._api = api
        self._channel.answers |= {
            "sights": api.sights,
            "refresh": api.refresh,
            "flush": api.flush,
            "settle": api.settle,
            "run_figures": api.run_figures,
            "looped": api.looped,
            "use": self.use,
            "drain": self.drain,
        }
        self._handed.settimeout(0)
        asyncio.get_running_loop().add_reader(self._handed, self._take, api)
        telling = asyncio.create_task(self._tell_ended(api))
        self._opened.callback(telling.cancel)
        # As in `loopguard.serve`: what is here by now stays.
        gc.collect()
        gc.freeze()
        return ()

    async def use(self, settings: Settings) -> None:
        """Serve what comes from now on by this configuration."""
        log.adjust(settings.log.level, settings.log.format)
        if self._api is not None:
            await self._api.use(settings)

    async def drain(self) -> None:
        """Let the running exchanges end; what comes is refused until the process ends."""
        if self._api is not None and not self._drained:
            await self._api.drain()
            self._drained = True

    async def close(self) -> None:
        """Close every connection and write the last rows."""
        await self._opened.aclose()

    def _take(self, api: Api) -> None:
        try:
            byte, descriptors, _, _ = socket.recv_fds(self._handed, 1, 1)
        except BlockingIOError:
            return
        if not byte:  # the command is gone
            asyncio.get_running_loop().remove_reader(self._handed)
        self._received += len(byte)
        for descriptor in descriptors:
            api.take(socket.socket(fileno=descriptor))

    async def _tell_ended(self, api: Api) -> None:
        while True:
            await asyncio.sleep(_TELL_S)
            with contextlib.suppress(Gone):
                await self._channel.ask("connections_ended", self._received - api.connections)

    async def _tell_looped(self, request: bytes, error: ModelResponseLoop, replies: int) -> None:
        with contextlib.suppress(Gone):
            await self._channel.ask("looped", request, error, replies)


async def _work(control: int, handed: int) -> None:
    channel = await Channel.open(socket.socket(fileno=control))
    worker = _Worker(channel, socket.socket(fileno=handed))
    await channel.run()
    await worker.drain()
    await worker.close()


def main() -> None:
    """Work until the command that started this is gone."""
    for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    number, control, handed = map(int, sys.argv[1:])
    keep_in_files(number)
    uvloop.run(_work(control, handed))
    # A command that was killed could not do it.
    shutil.rmtree(os.environ[FOLDER_VARIABLE], ignore_errors=True)


if __name__ == "__main__":
    main()
