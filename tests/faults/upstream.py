"""What an upstream can do wrong, and what comes of it."""

import asyncio
import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from functools import partial

from tests.fake_openrouter import (
    DONE,
    GENERATION_ID,
    PROCESSING,
    Line,
    Message,
    Refusal,
    Reply,
    Step,
    close,
    fault,
    head,
    image,
    raw,
    reset,
    split_every,
    stall,
)
from tests.fake_openrouter.server import WIRES
from tests.faults.fault import Fault, Try
from tests.faults.ground import CHAT, GOOD, TEXT, Ground, Parts, Script, Seen

MODES = ("held", "whole", "live")
KEPT = ("held", "whole")
LIVE = ("live",)

ENVIRONMENT = {
    "retry__max_attempts": "2",
    "upstream__first_delta_timeout_s": "5",
    "profiles__default__stream_idle_s": "4",
}
"""Short enough to be sat through, long enough for a machine that does something else."""


def upstream(
    what: str,
    play: Script,
    once: Seen,
    always: Seen | None = None,
    *,
    served: Sequence[str] = MODES,
    paths: Sequence[str] = (CHAT,),
    alone: bool = False,
) -> Fault:
    """A row: the upstream does it to the first attempt only, and to every one."""

    async def ask(ground: Ground, *, script: Script, mode: str, path: str) -> Seen:
        return await ground.ask(script, mode, path=path)

    def tries() -> Iterator[Try]:
        for path in paths:
            for mode in served:
                where = f"{mode} {path}"
                first = partial(
                    ask, script=lambda reply: [*play(reply), GOOD], mode=mode, path=path
                )
                yield Try(f"once, {where}", first, once)
                if always is not None:
                    every = partial(ask, script=play, mode=mode, path=path)
                    yield Try(f"always, {where}", every, always)

    got, recorded = once
    if always is not None:
        got, recorded = f"{got}; always: {always[0]}", f"{recorded}; always: {always[1]}"
    wires = {(CHAT,): "", WIRE_PATHS: ", every wire"}[tuple(paths)]
    return Fault(
        f"the upstream {what}", ", ".join(served) + wires, got, recorded, [*tries()], alone
    )


WIRE_PATHS = tuple(WIRES)


def again(outcome: str, failure: str) -> tuple[Seen, Seen]:
    """What is asked for again: the reply of the second attempt, or the failure of both."""
    return ("the reply, attempt 2", f"{outcome}, completed"), (failure, f"{outcome}, {outcome}")


NO_ID = again("broken (no_id)", "502 upstream_unusable")
OWED = again("broken (owed)", "502 upstream_unusable")
SILENT = again("stalled (no_id)", "504 upstream_timeout")
STALLED = again("stalled (owed)", "504 upstream_timeout")
CUT = ("part, then upstream_unusable", "broken (owed)")
STOPPED = ("part, then upstream_timeout", "stalled (owed)")
SERVED = ("the reply", "completed")
UNENDED = ("the reply, without its end", "completed")


def steps(*answer: Step) -> Script:
    """The same steps on every wire."""
    return lambda _: [answer]


def plain(headers: str, body: bytes, *after: Step) -> Script:
    """A response whose framing is written by hand."""
    lines = f"Content-Type: text/event-stream\r\nX-Generation-Id: {GENERATION_ID}\r\n{headers}"
    return steps(raw(f"HTTP/1.1 200 OK\r\n{lines}\r\n".encode() + body), *after)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


ALL = b"".join(step for step in WIRES[CHAT].events(GOOD) if isinstance(step, bytes))
ENDLESS_HEAD = b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000
EARLY = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"

LAST_WORD = Refusal(503, retry_after=1, headers={"Connection": "close"})

BEFORE_THE_HEAD = [
    upstream("closes before its head", steps(close), *NO_ID, paths=WIRE_PATHS),
    upstream("resets before its head", steps(reset), *NO_ID),
    upstream("stalls before its head", steps(stall), *SILENT),
    upstream("closes in its head", steps(raw(b"HTTP/1.1 200 OK\r\nContent-Ty"), close), *NO_ID),
    upstream("resets in its head", steps(raw(b"HTTP/1.1 200 OK\r\nContent-Ty"), reset), *NO_ID),
    upstream("stalls in its head", steps(raw(b"HTTP/1.1 200 OK\r\nContent-Ty"), stall), *SILENT),
    upstream("sends an endless head", steps(raw(ENDLESS_HEAD), stall), *NO_ID),
    upstream("sends garbage", steps(raw(b"\x00\xff garbage\r\n\r\n"), stall), *NO_ID),
    upstream("speaks another protocol", steps(raw(b"SSH-2.0-OpenSSH_9.6\r\n"), stall), *NO_ID),
    upstream("speaks HTTP/0.9", steps(raw(ALL), close), *NO_ID),
    upstream(
        "sends 100 Continue and 103 Early Hints first",
        lambda reply: [[raw(b"HTTP/1.1 100 Continue\r\n\r\n" + EARLY), head(), *reply.events]],
        SERVED,
    ),
    upstream("sends 103 and nothing more", steps(raw(EARLY), stall), *SILENT),
    upstream("sends 103 and closes", steps(raw(EARLY), close), *NO_ID),
    upstream(
        "switches protocols",
        steps(
            raw(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n")
        ),
        *NO_ID,
    ),
    upstream(
        "redirects",
        steps(head(302, headers={"Location": "/api/v1/models"})),
        ("302 the upstream's own error", "refused"),
    ),
    upstream(
        "answers 503 and closes during the wait",
        lambda _: [[*LAST_WORD.steps(), raw(b"0\r\n\r\n"), close]],
        *again("refused", "503 the upstream's own error"),
        paths=WIRE_PATHS,
    ),
    upstream(
        "answers 503 and closes during the wait, though it has said that it would not",
        lambda _: [[*Refusal(503, retry_after=1).steps(), raw(b"0\r\n\r\n"), close]],
        *again("refused", "503 the upstream's own error"),
        served=("held",),
        alone=True,
    ),
    upstream(
        "answers 503 and closes in its body",
        steps(head(503, "application/json"), b'{"error":', close),
        *again("broken (no_id)", "502 upstream_unusable"),
    ),
]

IN_THE_STREAM = [
    row
    for what, ending, kept, live in (
        ("closes", close, OWED, CUT),
        ("resets", reset, OWED, CUT),
        ("stalls", stall, STALLED, STOPPED),
    )
    for row in (
        upstream(f"{what} after its head", lambda _, end=ending: [[head(), end]], *kept),
        upstream(
            f"{what} before its first delta",
            lambda reply, end=ending: [[head(), *reply.begun[:-1], end]],
            *kept,
            paths=WIRE_PATHS,
        ),
        upstream(
            f"{what} in mid event",
            lambda reply, end=ending: [[head(), *reply.begun, reply.rest[0][:20], reply.read, end]],
            *kept,
            served=KEPT,
            paths=WIRE_PATHS,
        ),
        upstream(
            f"{what} in mid event",
            lambda reply, end=ending: [[head(), *reply.begun, reply.read, reply.rest[0][:20], end]],
            live,
            served=LIVE,
            paths=WIRE_PATHS,
        ),
        upstream(
            f"{what} in mid chunk",
            lambda reply, end=ending: [[head(), *reply.begun, raw(b"1000\r\ndata: "), end]],
            *kept,
            served=KEPT,
        ),
        upstream(
            f"{what} in mid chunk",
            lambda reply, end=ending: [
                [head(), *reply.begun, reply.read, raw(b"1000\r\ndata: "), end]
            ],
            live,
            served=LIVE,
        ),
        upstream(
            f"{what} after its finish, before [DONE]",
            lambda reply, end=ending: [[head(), *reply.events[:-1], reply.read, end]],
            UNENDED,
            served=("held", "live"),
        ),
        upstream(
            f"{what} right with its [DONE]",
            lambda reply, end=ending: [[head(), *reply.events, end]],
            SERVED,
        ),
        upstream(
            f"{what} after [DONE]",
            lambda reply, end=ending: [[head(), *reply.events, reply.taken, end]],
            SERVED,
        ),
    )
]


STALE = b"".join(
    [
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
        *(chunk(data) for data in Reply("Of another caller.").events()),
        b"0\r\n\r\n",
    ]
)
"""A response that nobody asked for."""


async def unasked(line: Line) -> None:
    """Send another response on the same connection."""
    await line.raw(STALE)
    line.chunked = False


def halved(data: bytes) -> bytes:
    """An event in two, where it holds an emoji: one half of its surrogate pair in each."""
    before, emoji, after = data.partition("😀".encode())
    if not emoji:
        return data
    frame_begin, frame_end = data.split(b'"content":"')[0] + b'"content":"', after.split(b'"', 1)[1]
    closing = b'"' + frame_end
    return before + b"\\ud83d" + closing + frame_begin + b"\\ude00" + after


FRAMING = [
    upstream(
        "announces a length that is too long",
        plain(f"Content-Length: {len(ALL) + 1000}\r\n", ALL, close),
        SERVED,
    ),
    upstream(
        "announces a length that is too long, and breaks off",
        plain("Content-Length: 1000\r\n", ALL[:300], close),
        *OWED,
        served=KEPT,
    ),
    upstream(
        "announces a length that is too short",
        plain("Content-Length: 300\r\n", ALL, stall),
        *NO_ID,
        served=KEPT,
        alone=True,
    ),
    upstream(
        "announces a length and chunks",
        plain(
            "Content-Length: 10\r\nTransfer-Encoding: chunked\r\n",
            chunk(ALL) + b"0\r\n\r\n",
            stall,
        ),
        *NO_ID,
    ),
    upstream(
        "announces two lengths",
        plain(f"Content-Length: {len(ALL)}\r\nContent-Length: 10\r\n", ALL, stall),
        *NO_ID,
    ),
    upstream(
        "announces a length that is no number", plain("Content-Length: -1\r\n", ALL, stall), *NO_ID
    ),
    upstream("announces no length and closes after its reply", plain("", ALL, close), SERVED),
    upstream(
        "announces no length and closes in its reply",
        plain("", ALL[:300], close),
        *OWED,
        served=KEPT,
    ),
    upstream(
        "sends a chunk size that is no number",
        plain("Transfer-Encoding: chunked\r\n", b"zz\r\n" + ALL, stall),
        *NO_ID,
    ),
    upstream(
        "sends a negative chunk size",
        plain("Transfer-Encoding: chunked\r\n", b"-5\r\n" + ALL, stall),
        *NO_ID,
    ),
    upstream(
        "sends a chunk size beyond 64 bits",
        plain("Transfer-Encoding: chunked\r\n", b"f" * 17 + b"\r\n" + ALL, stall),
        *NO_ID,
    ),
    upstream(
        "sends a chunk longer than its size",
        plain("Transfer-Encoding: chunked\r\n", b"100\r\n" + ALL, stall),
        *NO_ID,
    ),
    upstream(
        "sends endless chunk extensions",
        plain("Transfer-Encoding: chunked\r\n", b"1;" + b"x" * 100_000, stall),
        *STALLED,
    ),
    upstream(
        "sends trailing headers",
        plain(
            "Transfer-Encoding: chunked\r\nTrailer: X-A\r\n",
            chunk(ALL) + b"0\r\nX-A: 1\r\nX-B: 2\r\n\r\n",
        ),
        SERVED,
    ),
    upstream(
        "speaks HTTP/1.0",
        steps(raw(b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + ALL), close),
        SERVED,
    ),
    upstream(
        "ends the lines of its head with LF alone",
        steps(raw(b"HTTP/1.1 200 OK\nContent-Type: text/event-stream\n\n" + ALL), close),
        SERVED,
    ),
    upstream(
        "sends a second response with the first",
        lambda reply: [[head(), *reply.events, raw(b"0\r\n\r\n"), unasked]],
        SERVED,
        alone=True,
    ),
    upstream(
        "sends a second response a moment later",
        lambda reply: [[head(), *reply.events, raw(b"0\r\n\r\n"), reply.taken, unasked]],
        SERVED,
        alone=True,
    ),
    upstream(
        "sends its bytes one by one",
        lambda reply: [[split_every(1), head(), *reply.events]],
        SERVED,
        alone=True,  # a delta takes hundreds of turns of the fake's event loop
    ),
]


def packed(encoding: str, body: bytes, *after: Step) -> Script:
    """A body in one piece under a content encoding."""
    return steps(head(headers={"Content-Encoding": encoding}), body, *after)


GZIP_WINDOW = 31
"""With which zlib writes gzip."""


def gzipped(reply: Parts) -> list[Step]:
    """The events of a reply as a compressor sends them that is flushed after each."""
    packer = zlib.compressobj(wbits=GZIP_WINDOW)
    pieces = [packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH) for data in reply.events]
    begun = len(reply.begun)
    return [*pieces[:begun], reply.read, *pieces[begun:], packer.flush()]


async def bomb(line: Line) -> None:
    """100 MB in 100 kB."""
    packer = zlib.compressobj(9, wbits=GZIP_WINDOW)
    pieces = [packer.compress(b"data: ")]
    for _ in range(100):
        pieces.append(packer.compress(b"x" * 1_000_000))
        await asyncio.sleep(0)  # the other exchanges of the fake go on meanwhile
    await line.body(b"".join([*pieces, packer.flush()]))


ENCODINGS = [
    upstream(
        "packs its stream with gzip, unasked",
        lambda reply: [[head(headers={"Content-Encoding": "gzip"}), *gzipped(reply)]],
        SERVED,
    ),
    upstream(
        "packs its stream with deflate, unasked", packed("deflate", zlib.compress(ALL)), SERVED
    ),
    upstream(
        "packs its stream with bare deflate",
        packed("deflate", zlib.compress(ALL, wbits=-15)),
        SERVED,
    ),
    upstream("packs its stream with brotli", packed("br", b"\x0b\x02\x80data\x03"), *NO_ID),
    upstream("names an encoding that nobody knows", packed("rot13", ALL), SERVED),
    upstream(
        "sends broken gzip", packed("gzip", gzip.compress(ALL)[:40] + b"\xff" * 400, stall), *OWED
    ),
    upstream(
        "sends half of its gzip and closes", packed("gzip", gzip.compress(ALL)[:200], close), *OWED
    ),
    upstream("says gzip and sends none", packed("gzip", ALL, stall), *OWED),
]


def text(content: str | bytes) -> bytes:
    """An event with a piece of text, whose bytes may be none."""
    payload = {"id": GENERATION_ID, "choices": [{"index": 0, "delta": {"content": "PIECE"}}]}
    piece = content if isinstance(content, bytes) else content.encode()
    return b"data: " + json.dumps(payload).encode().replace(b"PIECE", piece) + b"\n\n"


async def endless(line: Line) -> None:
    """A line without end."""
    while True:
        await line.body(b"x" * 100_000)


async def hurry(line: Line) -> None:
    """Send more at a time than the fake does, whose buffer is small."""
    line.connection.widen(1 << 20)


def pictured(size_bytes: int) -> Script:
    """The good reply, and a picture of this size in one event."""
    picture = image()
    picture["image_url"]["url"] = "data:image/png;base64," + "iVBORw0KGgo" * (size_bytes // 11)
    return steps(hurry, head(), *Reply(Message(TEXT, images=(picture,))).events())


NEWS = " ".join(f"word{number}" for number in range(1_000_000))

CONTENT = [
    upstream(
        "sends half a UTF-8 sequence and closes",
        lambda reply: [[head(), *reply.begun[:-1], text(b"\xf0\x9f")[:-20], close]],
        *OWED,
    ),
    upstream(
        "sends half a UTF-8 sequence in an event", steps(head(), text(b"\xf0\x9f"), stall), *OWED
    ),
    upstream(
        "splits a UTF-8 sequence between chunks",
        lambda reply: [[head(), *[bytes([byte]) for byte in b"".join(reply.events)]]],
        SERVED,
        alone=True,  # as above
    ),
    upstream(
        "splits a surrogate pair between deltas",
        lambda reply: [[head(), *[halved(data) for data in reply.events]]],
        SERVED,
    ),
    upstream("sends no JSON", steps(head(), b"data: pl4nted\n\n", stall), *OWED),
    upstream("sends JSON that is no object", steps(head(), b"data: [1]\n\n", stall), *OWED),
    upstream("sends deep JSON", steps(head(), b"data: " + b"[" * 100_000 + b"\n\n", stall), *OWED),
    upstream("sends garbage in its stream", steps(head(), bytes(range(256)) * 20, close), *OWED),
    upstream(
        "sends HTML with status 200",
        steps(head(content_type="text/html"), b"<html>"),
        ("502 upstream_unusable", "broken (no_id)"),
    ),
    upstream(
        "sends JSON with status 200",
        steps(head(content_type="application/json"), b'{"ok":1}'),
        ("502 upstream_unusable", "broken (no_id)"),
    ),
    upstream("ends its stream without an event", steps(head()), *OWED),
    upstream("sends comments and nothing else", steps(head(), PROCESSING * 100, stall), *STALLED),
    upstream(
        "reports an error in its stream",
        lambda reply: [[head(), *reply.begun, fault(502, "Upstream error")]],
        *again("refused", "part, then the upstream's own error"),
        served=("held",),
    ),
    upstream(
        "sends [DONE] twice and goes on",
        lambda reply: [[head(), *reply.events, DONE, *reply.events, stall]],
        SERVED,
    ),
]

BIG = [
    upstream(
        "sends a gzip bomb of 100 MB",
        steps(head(headers={"Content-Encoding": "gzip"}), bomb, stall),
        ("502 upstream_unusable", "broken (owed)"),
        served=("held",),
    ),
    upstream(
        "sends an endless line",
        steps(hurry, head(), b"data: ", endless),
        ("502 upstream_unusable", "broken (owed)"),
        served=("held",),
    ),
    upstream(
        "sends 10 MB of text in one event",
        steps(hurry, head(), text(NEWS), stall),
        ("the reply, attempt 2", "looped (owed), completed"),
        ("502 model_response_loop", "looped (owed), looped (owed)"),
        served=("whole",),
    ),
    upstream(
        "sends an event of 13 MB",
        pictured(13_000_000),
        ("502 upstream_unusable", "broken (owed)"),
        served=("held",),
    ),
    upstream(
        "sends a picture of 10 MB in one event",
        pictured(10_000_000),
        ("the reply", "completed"),
        served=("held", "live"),
    ),
]
BIG_ENVIRONMENT = {
    "retry__max_attempts": "2",
    "server__max_line_bytes": "12000000",  # an event of 10 MB still fits
    "loop_memory__ttl_s": "0",
    "server__keepalive_s": "0",  # no head leaves before it is known what came of it
}

UPSTREAM = [*BEFORE_THE_HEAD, *IN_THE_STREAM, *FRAMING, *ENCODINGS, *CONTENT]
