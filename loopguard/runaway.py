"""`loopguard runaway`: a model endpoint that repeats one sentence, to point a framework at.

It answers each request for a reply with one sentence on repeat and notes how much of it the caller
read before it hung up, and whether a cap had been asked for. What was written tells what was read
only while little lies in between: the socket's send buffer is small, each delta waits until the
socket has taken the one before, and the pace leaves the caller time to read. The blind spot is a
caller that stops reading without hanging up: its own socket takes another 100,000 bytes or so.

The survey that this repeats gave six agent frameworks 300,048 characters; five read them all.
"""

import argparse
import asyncio
import contextlib
import json
import secrets
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from aiohttp import web

from loopguard.core.events import CHANNELS, Channel
from loopguard.runaway_wires import CHARS_PER_TOKEN, USD_PER_TOKEN, WIRES, Reply, Wire

UNIT = "I am checking the result again before I write the file. "
ANSWER = "The file is written, and the result is right."
MODEL = "loopguard/runaway"
PREFIXES = ("/v1", "/api/v1")

MAX_REQUEST_BYTES = 64 * 2**20
"""Room for the whole context of an agent, pictures included."""

SEND_BUFFER_BYTES = 4096
"""Some ten deltas; Linux allows hardly less."""

MAX_GENERATIONS = 10_000
"""Records kept for `/generation`; the oldest is forgotten first."""

SHUTDOWN_S = 0.1
"""A loop is not worth waiting for; aiohttp takes 0 for ever."""


@dataclass(frozen=True, slots=True)
class Script:
    """What the endpoint writes.

    Attributes:
        unit: the text on repeat, not empty.
        lead_in: text before the first unit.
        chars: whole units are written until the reply has at least so many characters.
        delta_chars: characters of one delta, 1 or more.
        pace_s: rest after each delta.
        loops: replies that loop before all further ones are the answer; None: all loop.
        answer: the reply that does not loop.
        channel: where the loop is written; the answer is content.
    """

    unit: str = UNIT
    lead_in: str = ""
    chars: int = 300_000
    delta_chars: int = len(UNIT)
    pace_s: float = 0.001
    loops: int | None = None
    answer: str = ANSWER
    channel: Channel = "content"

    def loops_at(self, attempt: int) -> bool:
        """Whether the reply to request number `attempt`, counted from 1, loops."""
        return self.loops is None or attempt <= self.loops

    def reply(self, attempt: int) -> str:
        """The whole text of the reply to request number `attempt`, counted from 1."""
        if not self.loops_at(attempt):
            return self.answer
        units = -(-(self.chars - len(self.lead_in)) // len(self.unit))
        return self.lead_in + self.unit * units

    def deltas(self, reply: str) -> Iterator[str]:
        """The reply in its deltas."""
        for start in range(0, len(reply), self.delta_chars):
            yield reply[start : start + self.delta_chars]


@dataclass(slots=True)
class Record:
    """One request, as it is logged when it has ended.

    Attributes:
        at: when it arrived, Unix seconds.
        path: of the request, without its query.
        model: the one asked for.
        stream: whether a stream was asked for.
        cap: tokens of output asked for at most; None where no cap was asked for.
        attempt: number of the request, counted from 1.
        written_chars: characters of the reply that the socket took.
        hung_up: whether the caller left before it had all of them.
    """

    at: float
    path: str
    model: str
    stream: bool
    cap: int | None
    attempt: int
    written_chars: int = 0
    hung_up: bool = False


class Runaway:
    """The endpoint's answers.

    Args:
        script: what it writes.
        log: called with the record of each request for a reply when that has ended.
    """

    def __init__(self, script: Script, log: Callable[[Record], None]) -> None:
        self._script = script
        self._log = log
        self._attempts = 0
        self._ending = False
        self._generations: dict[str, Record] = {}

    def app(self) -> web.Application:
        """The routes, alike under each prefix."""
        app = web.Application(client_max_size=MAX_REQUEST_BYTES)
        app.on_shutdown.append(self._end)
        for prefix in PREFIXES:
            for path, wire in WIRES.items():
                app.router.add_post(prefix + path, partial(self._reply, wire))
            app.router.add_get(prefix + "/generation", self._generation)
            app.router.add_get(prefix + "/models", models)
        return app

    async def _reply(self, wire: Wire, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        try:
            asked = json.loads(body)
            model, stream = str(asked["model"]), asked.get("stream") is True
        except (ValueError, TypeError, KeyError):
            return refusal(400, "The body is not a JSON object that names a model")
        self._attempts += 1
        cap = next((asked[key] for key in wire.cap_keys if asked.get(key) is not None), None)
        record = Record(time.time(), request.path, model, stream, cap, self._attempts)
        generation_id = f"gen-{int(record.at)}-{secrets.token_hex(10)}"
        channel = self._script.channel if self._script.loops_at(record.attempt) else "content"
        reply = Reply(generation_id, model, channel, self._script.reply(record.attempt))
        try:
            return await self._write(request, wire, reply, record)
        finally:
            cut = record.written_chars < len(reply.text) and request.transport is None
            record.hung_up = cut and not self._ending
            self._remember(generation_id, record)
            self._log(record)

    async def _write(
        self, request: web.Request, wire: Wire, reply: Reply, record: Record
    ) -> web.StreamResponse:
        frame = (wire.streamed if record.stream else wire.whole)(reply)
        headers = {
            "Content-Type": frame.content_type,
            "Cache-Control": "no-cache",
            "X-Generation-Id": reply.generation_id,
        }
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        await response.write(frame.before)
        for delta in self._script.deltas(reply.text):
            await response.write(frame.delta(delta))
            await until_taken(request)
            record.written_chars += len(delta)
            await asyncio.sleep(self._script.pace_s)
        await response.write(frame.after())
        await response.write_eof()
        return response

    async def _end(self, _: web.Application) -> None:
        """From here on it is the endpoint that cuts, not a caller."""
        self._ending = True

    def _remember(self, generation_id: str, record: Record) -> None:
        self._generations[generation_id] = record
        if len(self._generations) > MAX_GENERATIONS:
            del self._generations[next(iter(self._generations))]

    async def _generation(self, request: web.Request) -> web.Response:
        generation_id = request.query.get("id", "")
        record = self._generations.get(generation_id)
        if record is None:
            return refusal(404, f"Generation {generation_id} not found")
        return web.json_response({"data": generation(generation_id, record)})


async def until_taken(request: web.Request) -> None:
    """Wait until the socket has taken all that was written; aiohttp does so every 64 KiB only."""
    while (transport := request.transport) and transport.get_write_buffer_size():  # noqa: ASYNC110  it has no event for this
        await asyncio.sleep(0.001)


def generation(generation_id: str, record: Record) -> dict[str, Any]:
    """What OpenRouter's `/generation` would say of the reply, with a price for what was written."""
    tokens = record.written_chars // CHARS_PER_TOKEN
    cost_usd = tokens * USD_PER_TOKEN
    finish = None if record.hung_up else "stop"
    return {
        "id": generation_id,
        "api_type": "completions",
        "model": record.model,
        "provider_name": "Runaway",
        "created_at": datetime.fromtimestamp(record.at, UTC).isoformat(),
        "data_region": "global",
        "origin": "",
        "streamed": record.stream,
        "cancelled": record.hung_up,
        "finish_reason": finish,
        "native_finish_reason": finish,
        "is_byok": False,
        "tokens_prompt": 1,
        "tokens_completion": tokens,
        "native_tokens_prompt": 1,
        "native_tokens_completion": tokens,
        "native_tokens_reasoning": 0,
        "native_tokens_cached": 0,
        "upstream_inference_cost": 0,
        "usage": cost_usd,
        "total_cost": cost_usd,
    }


async def models(_: web.Request) -> web.Response:
    """The one model there is; any name is answered."""
    model = {
        "id": MODEL,
        "name": "Runaway",
        "object": "model",
        "created": 0,
        "owned_by": "loopguard",
    }
    return web.json_response({"object": "list", "data": [model]})


def refusal(status: int, message: str) -> web.Response:
    """An error in OpenRouter's shape."""
    return web.json_response({"error": {"message": message, "code": status}}, status=status)


@contextlib.asynccontextmanager
async def serving(
    script: Script, log: Callable[[Record], None], host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[str]:
    """The endpoint, listening.

    Args:
        script: what it writes.
        log: called with the record of each request for a reply when that has ended.
        host: an address of this machine.
        port: 0 for a free one.

    Yields:
        The base URL to point a client at.

    Raises:
        OSError: the address cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    runner = web.AppRunner(
        Runaway(script, log).app(),
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=SHUTDOWN_S,
    )
    await runner.setup()
    try:
        await web.SockSite(runner, listener).start()
        shown = f"[{host}]" if family == socket.AF_INET6 else host
        yield f"http://{shown}:{listener.getsockname()[1]}{PREFIXES[0]}"
    finally:
        await runner.cleanup()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.formatter_class = argparse.ArgumentDefaultsHelpFormatter
    plain = Script()
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8089, help="port to listen on; 0: a free one")
    parser.add_argument("--unit", type=text, default=plain.unit, help="the text on repeat")
    parser.add_argument("--lead-in", default=plain.lead_in, help="text before the first repeat")
    parser.add_argument("--chars", type=count, default=plain.chars, help="characters of a reply")
    parser.add_argument("--delta-chars", type=count, default=plain.delta_chars, help="of one delta")
    parser.add_argument("--pace-s", type=float, default=plain.pace_s, help="rest after each delta")
    parser.add_argument(
        "--channel", choices=CHANNELS, default=plain.channel, help="where the loop is written"
    )
    parser.add_argument("--loops", type=int, help="looping replies before it answers; else all")
    parser.add_argument("--answer", default=plain.answer, help="the reply that does not loop")
    parser.add_argument(
        "--log", default="-", help="file for a JSON line of each request; -: standard output"
    )


def text(argument: str) -> str:
    """An argument that is not empty."""
    if not argument:
        raise argparse.ArgumentTypeError("must not be empty")
    return argument


def count(argument: str) -> int:
    """An argument that is a whole number, 1 or more."""
    number = int(argument)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM; the exit status."""
    script = Script(
        unit=arguments.unit,
        lead_in=arguments.lead_in,
        chars=arguments.chars,
        delta_chars=arguments.delta_chars,
        pace_s=arguments.pace_s,
        loops=arguments.loops,
        answer=arguments.answer,
        channel=arguments.channel,
    )
    try:
        with contextlib.ExitStack() as stack:
            log_file = sys.stdout
            if arguments.log != "-":
                log_file = stack.enter_context(Path(arguments.log).open("a", encoding="utf-8"))
            asyncio.run(serve(script, arguments.host, arguments.port, log_file))
    except OSError as error:
        sys.stderr.write(f"loopguard runaway: {error}\n")
        return 1
    return 0


async def serve(script: Script, host: str, port: int, log_file: TextIO) -> None:
    """Serve until SIGINT or SIGTERM, a JSON line of the log for each request."""

    def log(record: Record) -> None:
        log_file.write(json.dumps(asdict(record)) + "\n")
        log_file.flush()

    told_to_end = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, told_to_end.set)
    async with serving(script, log, host, port) as base_url:
        sys.stderr.write(f"loopguard runaway: point a base_url at {base_url}\n")
        await told_to_end.wait()
