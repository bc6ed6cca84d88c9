"""What a caller can do wrong, and what comes of it."""

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from tests.end_to_end.raw_caller import REQUEST, RawCaller, asked, connected
from tests.fake_openrouter import Refusal, head, stall
from tests.fake_openrouter.server import Answer
from tests.faults.fault import Fault, Try
from tests.faults.ground import CHAT, GOOD, Ground, Reading, Seen, parts, until

ENVIRONMENT = {
    "retry__max_attempts": "2",
    "server__keepalive_s": "0.2",
    "server__head_timeout_s": "6",
    "server__body_timeout_s": "6",
    "server__max_body_bytes": "1000000",
}
"""Short enough that no limit has to be sat through; comments say that an exchange has begun."""

NOTHING = "nothing"
"""No exchange came of it."""


def caller(
    what: str,
    play: Callable[[Ground, str], Awaitable[Seen]],
    got: str,
    recorded: str,
    served: Sequence[str] = ("held",),
) -> Fault:
    """A row, tried once for each way of being served."""
    tries = [Try(mode, partial(_play, play, mode), (got, recorded)) for mode in served]
    return Fault(f"the caller {what}", ", ".join(served), got, recorded, tries)


async def _play(play: Callable[[Ground, str], Awaitable[Seen]], mode: str, here: Ground) -> Seen:
    return await play(here, mode)


Leave = Callable[[RawCaller], None]


def close(leaving: RawCaller) -> None:
    """End the connection properly."""
    leaving.leave()


def reset(leaving: RawCaller) -> None:
    """End the connection with a reset."""
    writer = leaving._writer
    linger_not_at_all = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, linger_not_at_all
    )
    writer.transport.abort()


COMMENT = b": loopguard keep-alive\n\n"
COMMENTS = 2 * COMMENT
"""The first may have been written before the upstream's answer was read, the second was not."""


async def leaves(
    here: Ground,
    mode: str,
    *,
    script: Sequence[Answer],
    answered: bool = False,
    seen: bytes = b"",
    how: Leave = close,
) -> Seen:
    """Leave once the upstream was asked, or has answered, and something has been read since."""
    async with here.calling(script, mode) as (leaving, name):
        await asked_upstream(here, name)
        if answered:
            await until(lambda: here.asked(name)[0].answered)
            leaving.body.clear()
        if seen:
            await leaving.until(seen)
        how(leaving)
        recorded = await here.recorded(name)
    await here.nothing_left(name)
    return "left", recorded


async def asked_upstream(here: Ground, name: str) -> None:
    """Wait until the upstream has been asked."""
    await until(lambda: bool(here.asked(name)))


def leaving(
    what: str,
    script: Sequence[Answer],
    recorded: str,
    served: Sequence[str],
    seen: bytes = b"",
    *,
    answered: bool = False,
) -> list[Fault]:
    """Two rows: it closes its connection, or resets it."""
    return [
        caller(
            f"{verb} {what}",
            partial(leaves, script=script, answered=answered, seen=seen, how=how),
            "left",
            recorded,
            served,
        )
        for verb, how in (("leaves", close), ("resets", reset))
    ]


MODES = ("held", "whole", "live")
EVENTS = parts(CHAT, "held", Reading())

LEAVING = [
    *leaving("before the upstream's head", [[stall]], "departed (no_id)", MODES),
    *leaving(
        "in silence after the upstream's head",
        [[head(), stall]],
        "departed (owed)",
        ("held", "live"),
        COMMENT,
    ),
    *leaving(
        "while its reply is held",
        [[head(), *EVENTS.begun, stall]],
        "departed (owed)",
        ("held",),
        COMMENT,
    ),
    *leaving(
        "in mid reply", [[head(), *EVENTS.begun, stall]], "departed (owed)", ("live",), b"The good"
    ),
    *leaving(
        "in the wait before a retry",
        [Refusal(503, retry_after=30)],
        "refused; departed",
        ("held", "live"),
        COMMENTS,
        answered=True,
    ),
]


async def sends(
    here: Ground, _: str, *, data: bytes, then: Callable[[RawCaller], Awaitable[None]] | None = None
) -> Seen:
    """Send bytes that are no request, or half of one, and read what comes."""
    name = here.name()
    async with connected(here.command.port) as sending:
        with contextlib.suppress(ConnectionError):
            await sending.write(data.replace(b"NAME", name.encode()))
        if then is not None:
            await then(sending)
        got = await here.got(sending, "whole", name)
    return got, _recorded(here, name)


def _recorded(here: Ground, name: str) -> str:
    told = any(f'"run": "{name}"' in line for line in here.command.lines)
    asked_upstream = any(each.headers.get("x-script") == name for each in here.fake.attempts)
    return "an exchange" if told or asked_upstream else NOTHING


def post(*headers: str, body: bytes = b"", length: int | None = None) -> bytes:
    """A request whose head is written by hand."""
    size = len(body) if length is None else length
    lines = [
        "POST /v1/chat/completions HTTP/1.1",
        "Host: x",
        "X-Script: NAME",
        "X-Loopguard-Run: NAME",
    ]
    if not any(header.lower().startswith(("transfer-", "content-length")) for header in headers):
        lines.append(f"Content-Length: {size}")
    return "\r\n".join([*lines, *headers, "", ""]).encode() + body


async def leave(sending: RawCaller) -> None:
    """Leave, and read nothing."""
    sending.leave()


BODY = json.dumps(REQUEST).encode()

SENDING = [
    caller(
        "leaves in the head of its request",
        partial(sends, data=post()[:60], then=leave),
        "closed",
        NOTHING,
    ),
    caller(
        "leaves in the body of its request",
        partial(sends, data=post(body=BODY[:20], length=200), then=leave),
        "closed",
        NOTHING,
    ),
    caller(
        "sends a head that never ends", partial(sends, data=post()[:60]), "408 timeout", NOTHING
    ),
    caller(
        "sends a body that never ends",
        partial(sends, data=post(body=BODY[:20], length=200)),
        "408 timeout",
        NOTHING,
    ),
    caller(
        "sends rubbish",
        partial(sends, data=b"\x00\xff rubbish\r\n\r\n"),
        "400 invalid_request",
        NOTHING,
    ),
    caller(
        "begins TLS",
        partial(sends, data=b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200)),
        "400 invalid_request",
        NOTHING,
    ),
    caller(
        "speaks HTTP/2",
        partial(sends, data=b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9)),
        "400 invalid_request",
        NOTHING,
    ),
    caller(
        "sends an endless head",
        partial(sends, data=post("X-A: " + "x" * 100_000)),
        "431 head_too_large",
        NOTHING,
    ),
    caller(
        "sends a chunk size that is no number",
        partial(sends, data=post("Transfer-Encoding: chunked", body=b"zz\r\n")),
        "400 invalid_request",
        NOTHING,
    ),
    caller(
        "announces a length and chunks",
        partial(
            sends, data=post("Content-Length: 5", "Transfer-Encoding: chunked", body=b"0\r\n\r\n")
        ),
        "400 invalid_request",
        NOTHING,
    ),
    caller(
        "says gzip and sends none",
        partial(sends, data=post("Content-Encoding: gzip", body=BODY)),
        "400 invalid_request",
        NOTHING,
    ),
    caller("sends no JSON", partial(sends, data=post(body=b"{")), "400 invalid_request", NOTHING),
    caller(
        "sends no UTF-8",
        partial(sends, data=post(body=b'{"model": "\xe2\x82"}')),
        "400 invalid_request",
        NOTHING,
    ),
    caller(
        "sends deep JSON",
        partial(sends, data=post(body=b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}")),
        "400 invalid_request",
        NOTHING,
    ),
    caller(
        "sends more than it may",
        partial(sends, data=post(body=bytes(1_000_001))),
        "413 payload_too_large",
        NOTHING,
    ),
    caller(
        "announces more than it may",
        partial(sends, data=post(length=10**15)),
        "413 payload_too_large",
        NOTHING,
    ),
]


PIECE_BYTES = 7
"""No name, number or word of a request comes in one piece."""


async def slowly(here: Ground, mode: str) -> Seen:
    """Send a request in small pieces."""
    name = here.name()
    here.fake.scripts[name] = [GOOD]
    body, headers = asked(mode)
    text = json.dumps(body).encode()
    lines = "".join(f"{key}: {value}\r\n" for key, value in (headers | here.named(name)).items())
    request = f"POST /v1{CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(text)}\r\n{lines}\r\n"
    async with connected(here.command.port) as sending:
        sent = request.encode() + text
        for start in range(0, len(sent), PIECE_BYTES):
            await sending.write(sent[start : start + PIECE_BYTES])
            await asyncio.sleep(0)
        got = await here.got(sending, mode, name)
    return got, await here.recorded(name)


async def half_closes(here: Ground, mode: str) -> Seen:
    """Send a request, say that nothing more will come, and wait for the reply."""
    async with here.calling([[stall]], mode) as (sending, name):
        await asked_upstream(here, name)
        sending._writer.write_eof()
        got = await here.got(sending, mode, name)
        assert got in {"closed", "cut off"}, got  # a comment may have left before
        return "no reply", await here.recorded(name)


async def pipelines(here: Ground, mode: str) -> Seen:
    """Send the next request before the reply to the first."""
    async with here.calling([GOOD], mode) as (sending, name):
        second = here.name()
        here.fake.scripts[second] = [GOOD]
        body, headers = asked(mode)
        await sending.send(body, path="/v1" + CHAT, headers={**headers, **here.named(second)})
        first = await here.got(sending, mode, name)
        again = RawCaller(sending._reader, sending._writer)
        got = await here.got(again, mode, second)
        recorded = {await here.recorded(name), await here.recorded(second)}
        return " or ".join({first, got}), " or ".join(recorded)


async def asks_to_go_on(here: Ground, mode: str) -> Seen:
    """Wait for 100 Continue before the body."""
    name = here.name()
    here.fake.scripts[name] = [GOOD]
    body, headers = asked(mode)
    text = json.dumps(body).encode()
    lines = "".join(f"{key}: {value}\r\n" for key, value in (headers | here.named(name)).items())
    async with connected(here.command.port) as sending:
        await sending.write(
            f"POST /v1{CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(text)}\r\n"
            f"Expect: 100-continue\r\n{lines}\r\n".encode()
        )
        told = await sending._reader.readuntil(b"\r\n\r\n")
        assert told.startswith(b"HTTP/1.1 100 ")
        await sending.write(text)
        got = await here.got(sending, mode, name)
        return got, await here.recorded(name)


async def reads_slowly(here: Ground, mode: str) -> Seen:
    """Read a few bytes at a time, through a small window."""
    async with here.calling([GOOD], mode) as (reading, name):
        reading._writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_RCVBUF, 2048
        )
        reading._writer.transport.pause_reading()
        await here.recorded(name) if mode == "whole" else None
        await asyncio.sleep(0.3)  # longer than the time between two comments is the point
        reading._writer.transport.resume_reading()
        got = await here.got(reading, mode, name)
        return got, await here.recorded(name)


READING = [
    caller("sends its request in pieces of 7 bytes", slowly, "the reply", "completed", MODES),
    caller("half-closes after its request", half_closes, "no reply", "departed (no_id)", MODES),
    caller("sends its next request early", pipelines, "the reply", "completed", MODES),
    caller("waits for 100 Continue", asks_to_go_on, "the reply", "completed", MODES),
    caller("begins to read late", reads_slowly, "the reply", "completed", MODES),
]

CALLERS = [*LEAVING, *SENDING, *READING]
