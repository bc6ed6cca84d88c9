"""Two processes of one command ask each other, over a socket that only they hold.

A message is its length in four bytes and then a pickled value, so that both sides speak in the
core's own types. Pickle runs what a sender writes; so one side has started the other, as the same
user, and nobody else can write to the socket.
"""

import asyncio
import logging
import pickle
import socket
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any, NamedTuple, Self, TypeAlias

Answers: TypeAlias = dict[str, Callable[..., Awaitable[object]]]
"""What can be asked for, by name."""

ANSWER_S = 2.0
"""Nearly all answers take a millisecond; a process that takes this long is of no use now."""

_LENGTH_BYTES = 4

_log = logging.getLogger("loopguard")


class Gone(ConnectionError):
    """The other process has ended, or does not answer in time."""


class Failed(RuntimeError):
    """The other process has met an exception, which it has logged; its class is the message."""


class _Question(NamedTuple):
    number: int
    name: str
    arguments: tuple[object, ...]


class _Answer(NamedTuple):
    number: int
    content: object


class _Failure(NamedTuple):
    number: int
    error: str


class Channel:
    """One side of it.

    Attributes:
        answers: what the other side may ask for.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.answers: Answers = {}
        self._reader = reader
        self._writer = writer
        self._numbers = count()
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._answering: set[asyncio.Task[None]] = set()

    @classmethod
    async def open(cls, end: socket.socket) -> Self:
        """Speak over one end of a socket pair; nothing is read before `run`."""
        return cls(*await asyncio.open_unix_connection(sock=end))

    async def run(self) -> None:
        """Answer, and take answers, until the other side is gone."""
        try:
            while True:
                self._take(await self._read())
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            self.close()
            for future in self._asked.values():
                if not future.done():
                    future.set_exception(Gone())

    async def ask(self, name: str, *arguments: object, within_s: float = ANSWER_S) -> Any:
        """Ask the other side; what is asked is on its way before the first await.

        Raises:
            Gone: there is no answer in time.
            Failed: there is none at all.
        """
        number = next(self._numbers)
        self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            self._write(_Question(number, name, arguments))
            async with asyncio.timeout(within_s):
                return await self._asked[number]
        except TimeoutError:
            raise Gone from None
        finally:
            del self._asked[number]

    def close(self) -> None:
        """Let the other side see that this one is gone."""
        self._writer.close()

    def _take(self, message: object) -> None:
        match message:
            case _Question():
                answering = asyncio.create_task(self._answer(message))
                self._answering.add(answering)
                answering.add_done_callback(self._answering.discard)
            case _Answer(number, content):
                if waiting := self._waiting(number):
                    waiting.set_result(content)
            case _Failure(number, error):
                if waiting := self._waiting(number):
                    waiting.set_exception(Failed(error))

    def _waiting(self, number: int) -> asyncio.Future[Any] | None:
        """Where an answer is waited for; None where somebody has given up."""
        future = self._asked.get(number)
        return None if future is None or future.done() else future

    async def _answer(self, question: _Question) -> None:
        try:
            content = await self.answers[question.name](*question.arguments)
        except Exception as error:  # noqa: BLE001 - whoever asked is told, whatever it is
            _log.warning("cannot answer `%s`", question.name, exc_info=True)
            self._write(_Failure(question.number, type(error).__name__))
        else:
            self._write(_Answer(question.number, content))

    async def _read(self) -> object:
        length = int.from_bytes(await self._reader.readexactly(_LENGTH_BYTES))
        return pickle.loads(await self._reader.readexactly(length))  # noqa: S301  see above

    def _write(self, message: object) -> None:
        if self._writer.is_closing():
            raise Gone
        content = pickle.dumps(message)
        self._writer.write(len(content).to_bytes(_LENGTH_BYTES) + content)
