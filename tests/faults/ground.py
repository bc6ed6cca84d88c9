"""The ground that faults are tried on: loopguard as a process, and what is seen of it from outside.

What a caller got and what was recorded are said in a few words of a small language, so that what is
expected of a fault, what was seen and what the table shows are one and the same text:

* the reply; the reply, attempt 2; the reply without its end (all of it, but no sentinel came)
* 502 upstream_unusable: an error in the shape of the API, by status
* part, then upstream_unusable: an error in the shape of the API, inside a stream, after text
* nothing, then ...: the same before any text
* cut off: a connection that was closed, which no caller can take for an end
* a clean end of half a reply: what must never be

and of each attempt its outcome, with what the ledger holds of it in brackets: `owed`, or why it has
no price. What ended the exchange follows where it was no attempt.
"""

import asyncio
import contextlib
import json
import re
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from loopguard import errors
from loopguard.core import sse
from loopguard.core.dialects import DIALECTS
from loopguard.core.events import Done, Event, Finish, TextDelta, UpstreamFault
from tests.end_to_end.command import Command, serving
from tests.end_to_end.raw_caller import RawCaller, asked, connected, metrics
from tests.fake_openrouter import GENERATION_ID, FakeOpenRouter, Line, Reply, Step, wait
from tests.fake_openrouter.server import WIRES, Answer, Request

CHAT = "/chat/completions"
TEXT = "The good answer: café, naïve, 😀, 漢字."
GOOD = Reply(TEXT)
FIRST = b"The good"
"""The first delta of `GOOD`."""

PATIENCE_S = 30.0
"""Nothing that is waited for here takes a tenth of it, but where others have the processor."""

THE_UPSTREAMS = "the upstream's own error"
_ERROR_TYPE = re.compile(rb'"error_type":"(\w+)"')
ERROR_TYPES = [kind.error_type for kind in errors.LoopguardError.__subclasses__()]

Seen = tuple[str, str]
"""What the caller got, and what was recorded."""


@dataclass(frozen=True)
class Parts:
    """`GOOD` on one wire, in pieces that a fault is put between.

    Attributes:
        events: all of it.
        begun: what comes before the first delta, and that delta.
        read: a step that waits until a caller who is served live has read so far.
        rest: what follows.
        taken: a step that waits until the caller has its whole answer.
    """

    events: Sequence[bytes]
    begun: Sequence[bytes]
    read: Step
    rest: Sequence[bytes]
    taken: Step


Script = Callable[[Parts], Sequence[Answer]]
"""The answers to the attempts of one exchange."""


@dataclass(frozen=True)
class Reading:
    """How far a caller has read.

    Attributes:
        text: set at the first text.
        all: set at the end of the response.
    """

    text: asyncio.Event = field(default_factory=asyncio.Event)
    all: asyncio.Event = field(default_factory=asyncio.Event)


def parts(path: str, mode: str, reading: Reading) -> Parts:
    """`GOOD` on the wire of a path."""
    events = [step for step in WIRES[path].events(GOOD) if isinstance(step, bytes)]
    first = next(number for number, data in enumerate(events) if FIRST in data)

    async def read(_: Line) -> None:
        if mode == "live":  # the others have nothing to read yet
            await reading.text.wait()

    return Parts(events, events[: first + 1], read, events[first + 1 :], wait(reading.all))


@dataclass
class Ground:
    """loopguard in front of a fake.

    Attributes:
        command: the process.
        fake: what it asks.
        ledger: the file of its ledger.
    """

    command: Command
    fake: FakeOpenRouter
    ledger: Path
    _names: Any = field(default_factory=count)
    _open_files: int = 0

    def name(self) -> str:
        """A name for one exchange: its script's and its run's."""
        return f"run-{next(self._names)}"

    @asynccontextmanager
    async def calling(
        self,
        script: Sequence[Answer],
        mode: str,
        *,
        path: str = CHAT,
        more: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[tuple[RawCaller, str]]:
        """A caller who has sent a request, and the name of its exchange."""
        name = self.name()
        self.fake.scripts[name] = list(script)
        body, chosen = asked(mode)
        async with connected(self.command.port) as caller:
            await caller.send(
                {**body, **({"max_tokens": 9} if path == "/messages" else {}), **(more or {})},
                path="/v1" + path,
                headers={**chosen, **self.named(name), **(headers or {})},
            )
            yield caller, name

    def named(self, name: str) -> dict[str, str]:
        """The headers that give an exchange its name."""
        return {"X-Script": name, "X-Loopguard-Run": name, "Authorization": "Bearer sk-caller"}

    async def ask(self, play: Script, mode: str, *, path: str = CHAT) -> Seen:
        """Ask, read to the end, and say what was seen; nothing of the exchange may be left."""
        reading = Reading()
        script = play(parts(path, mode, reading))
        async with self.calling(script, mode, path=path) as (caller, name):
            got = await self.got(caller, mode, name, path=path, reading=reading)
        recorded = await self.recorded(name)
        await self.nothing_left(name)
        return got, recorded

    async def got_of(
        self, script: Sequence[Answer], mode: str, more: Mapping[str, Any] | None = None
    ) -> str:
        """Ask, read to the end and say what came."""
        async with self.calling(script, mode, more=more) as (caller, name):
            return await self.got(caller, mode, name)

    async def got(
        self,
        caller: RawCaller,
        mode: str,
        name: str,
        *,
        path: str = CHAT,
        reading: Reading | None = None,
    ) -> str:
        """Read a response to its end and say what it was."""
        try:
            while not caller.ended:
                await caller._read_on()
                if reading is not None and FIRST in caller.body:
                    reading.text.set()
        except (asyncio.IncompleteReadError, ConnectionError):
            return _cut_off(caller)
        if reading is not None:
            reading.all.set()
        if caller.status != 200:
            return _refusal(caller)
        if mode == "whole":
            return self._whole(caller, path, name)
        return _stream(caller, path)

    def _whole(self, caller: RawCaller, path: str, name: str) -> str:
        body = caller.body.decode().replace(self.asked(name)[-1].generation_id, GENERATION_ID)
        if json.loads(body) != WIRES[path].whole(GOOD):
            return "another reply"
        return "the reply" + _attempts(caller)

    async def recorded(self, name: str) -> str:
        """What the log and the ledger hold of an exchange, waited for."""
        line = json.loads(await self.command.line(f'"run": "{name}"'))
        owing = {
            attempt["attempt"]
            for attempt in line["attempt"]
            if attempt["outcome"] not in {"completed", "refused"} and "unreachable" not in attempt
        }
        # An entry is written before the next attempt, unless the disk is slow or the caller gone.
        await until(lambda: owing <= self.entries(name).keys())
        entries = self.entries(name)
        told = [
            attempt["outcome"]
            + (f" ({entries[attempt['attempt']]})" if attempt["attempt"] in entries else "")
            for attempt in line["attempt"]
        ]
        ended = line["outcome"]
        return ", ".join(told) + ("" if told[-1:] and told[-1].startswith(ended) else f"; {ended}")

    def entries(self, name: str) -> dict[int, str]:
        """The ledger's entries of an exchange, by attempt: owed, or why there will be no price."""
        with contextlib.closing(sqlite3.connect(f"file:{self.ledger}?mode=ro", uri=True)) as read:
            try:
                rows = read.execute(
                    "SELECT attempt, state, unpriced_reason FROM entries WHERE run = ?", (name,)
                )
            except sqlite3.OperationalError:  # a launch does not wait for a slow database
                return {}
            return {attempt: reason or state for attempt, state, reason in rows}

    def asked(self, name: str) -> list[Request]:
        """What the upstream was asked for an exchange."""
        return [each for each in self.fake.attempts if each.headers.get("x-script") == name]

    async def nothing_left(self, name: str) -> None:
        """Wait until each connection of an exchange is closed, or idle after a reply's end."""
        mine = self.asked(name)
        await until(lambda: all(each.answered or not each.connection.open for each in mine))

    async def next_works(self) -> None:
        """The next exchange is served at once."""
        seen = await self.ask(lambda _: [GOOD], "whole")
        # An upstream that closed an idle connection may have cost it an attempt.
        assert seen[0].startswith("the reply"), f"the next exchange: {seen}"

    async def began(self) -> None:
        """Warm up, and note what is open when nothing happens."""
        await self.next_works()
        await self.rest()
        self._open_files = self.command.open_files()

    async def at_rest(self) -> Seen:
        """What is left of all that was tried, once nothing happens any more."""
        series = await self.rest()
        await until(lambda: self.command.open_files() <= self._open_files + FEW)
        lines = [json.loads(line) for line in self.command.lines if '"message": "exchange"' in line]
        told = Counter(line["outcome"] for line in lines)
        counted = {name: series[f"loopguard_exchanges_total{{{name}}}"] for name in told}
        assert counted == told, f"the metrics count {counted}, the log has {told}"
        faults = [line for line in self.command.lines if json.loads(line)["level"] == "error"]
        assert not faults, faults
        assert self.command.peak_memory_bytes() < PEAK_BYTES
        return AT_REST

    async def rest(self) -> dict[str, float]:
        """Close the idle connections and wait until nothing happens; the metrics then."""
        for connection in self.fake.connections:
            connection.close()
        async with asyncio.timeout(PATIENCE_S):
            while True:
                series = await metrics(self.command.admin)
                if not any(series[gauge] for gauge in GAUGES):
                    return series
                await asyncio.sleep(0.2)  # a connection that ended well is given 0.3 s


AT_REST: Seen = ("no exchange, upstream, byte or file too many", "the metrics as the log")

GAUGES = ("loopguard_exchanges_in_flight", "loopguard_open_upstreams", "loopguard_held_bytes")

FEW = 8
"""Files that the ledger's database opens when it is first read; a leak would be of hundreds."""

PEAK_BYTES = 400_000_000
"""Far above what bounded buffers take, far below what an unbounded one would."""

END = {
    CHAT: b"data: [DONE]",
    "/completions": b"data: [DONE]",
    "/responses": b"data: [DONE]",
    "/messages": b'{"type":"message_stop"}',
}
"""How a good stream ends."""


@asynccontextmanager
async def ground(
    folder: Path, *, under: Sequence[str] = (), host: str = "127.0.0.1", **environment: str
) -> AsyncIterator[Ground]:
    """A process of its own and a fake that it stands in front of; keywords are settings."""
    ledger = folder / "ledger.db"
    settings = {"ledger__url": f"sqlite:///{ledger}"} | environment
    async with FakeOpenRouter([GOOD]) as fake:
        base_url = fake.base_url.replace("127.0.0.1", host)
        async with serving(base_url, under=under, **settings) as command:
            yield Ground(command, fake, ledger)


async def until(condition: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
    """Wait until it is so, in another process, which says nothing when it is."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def _attempts(caller: RawCaller) -> str:
    """Which attempt it was: told by a header, or by a comment where the head had left before."""
    told = re.search(rb"loopguard attempts=(\d+)", caller.body)
    attempts = told[1].decode() if told else caller.headers.get("x-loopguard-attempts", "1")
    return "" if attempts == "1" else f", attempt {attempts}"


def _cut_off(caller: RawCaller) -> str:
    return "cut off" if caller.status else "closed"


def _error_type(body: bytes) -> str:
    named = _ERROR_TYPE.search(body)
    kind = "" if named is None else named[1].decode()
    return kind if kind in ERROR_TYPES else THE_UPSTREAMS


def _refusal(caller: RawCaller) -> str:
    """An error by status: ours in the shape of its API, or the upstream's own."""
    kind = _error_type(caller.body)
    if kind != THE_UPSTREAMS:
        assert json.loads(caller.body)["error"]["message"]
        assert caller.headers["content-type"].startswith("application/json")
    return f"{caller.status} {kind}"


def _stream(caller: RawCaller, path: str) -> str:
    events = _events(path, bytes(caller.body))
    text = "".join(event.text for event in events if isinstance(event, TextDelta))
    text = text.encode("utf-16", "surrogatepass").decode("utf-16")  # the halves of a pair joined
    last = events[-1] if events else None
    if isinstance(last, UpstreamFault):
        assert TEXT.startswith(text)
        # Nothing that a caller could take for an end stands beside the error.
        assert not any(isinstance(event, Finish | Done) for event in events)
        return f"{'part' if text else 'nothing'}, then {_error_type(caller.body)}"
    if text != TEXT or not any(isinstance(event, Finish) for event in events):
        return "a clean end of half a reply"
    ended = caller.body.rstrip().endswith(END[path])
    return "the reply" + _attempts(caller) + ("" if ended else ", without its end")


def _events(path: str, body: bytes) -> list[Event]:
    parser = DIALECTS[path].Parser()
    blocks = sse.Decoder(1 << 25).feed(body)
    return [
        event
        for block in blocks
        if block.data is not None
        for event in parser.parse(block.data).events
    ]
