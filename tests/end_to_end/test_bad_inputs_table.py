"""The table of bad inputs: what each is answered with, and that nothing else comes of any of them.

`pytest -s tests/end_to_end/test_bad_inputs_table.py` prints what was tried.
"""

import asyncio
import contextlib
import json
from collections import Counter
from dataclasses import dataclass

from tests.end_to_end.bad_inputs import (
    CHAT,
    MAX_BODY_BYTES,
    SMUGGLED,
    TOKEN,
    BadInput,
    all_of_them,
    ask,
)
from tests.end_to_end.command import Command, serving
from tests.end_to_end.raw_caller import PATIENCE_S, connected, turning_until
from tests.fake_openrouter import FakeOpenRouter, Reply

# More at once would only wait for each other's processor.
AT_ONCE = 16

# Whatever could be repeated to somebody who must not read it.
PLANTED = b"pl4nted"
REPLY = "The r3ply that is good."
GOOD = b'{"model":"m/x","messages":[{"role":"user","content":"pl4nted"}]}'


@dataclass
class Answer:
    """One response as a strict reader takes it."""

    status: int
    headers: dict[str, str]
    body: bytes


async def written(port: int, sent: bytes) -> bytes:
    """What is read on one connection until it ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    received = b""
    try:
        async with asyncio.timeout(PATIENCE_S):
            writer.write(sent)
            # A peer that is refused in the middle of what it writes still reads why.
            while piece := await reader.read(1 << 16):
                received += piece
    except ConnectionError:
        pass
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    return received


def answers(received: bytes) -> list[Answer]:
    """All responses of a connection, framed by their lengths and by nothing else."""
    found = []
    while received:
        head, separator, received = received.partition(b"\r\n\r\n")
        assert separator, head
        first, *lines = head.decode("ascii").split("\r\n")
        version, status, *_ = first.split(" ")
        assert version in {"HTTP/1.1", "HTTP/1.0"}
        headers = dict(line.split(": ", 1) for line in lines)
        assert len(headers) == len(lines), lines
        names = {name.lower(): value for name, value in headers.items()}
        assert "transfer-encoding" not in names
        length = int(names["content-length"])
        found.append(Answer(int(status), names, received[:length]))
        assert len(received) >= length
        received = received[length:]
    return found


def told_in_form(answer: Answer, listener: str) -> None:
    """An error says what is wrong, in the API's form where callers read it, and no version."""
    assert answer.headers["content-type"].partition(";")[0] == "application/json"
    assert answer.headers["server"] == "loopguard"
    error = json.loads(answer.body)["error"]
    assert error
    if listener == "api":
        assert error["message"]
        assert error["type"]


async def tried(command: Command, bad: BadInput) -> str | None:
    """Write a bad input, then ask properly; say what was not as it must be."""
    port = command.port if bad.listener == "api" else int(command.admin.rpartition(":")[2])
    try:
        received = await written(port, bad.sent)
        found = answers(received)
        assert tuple(answer.status for answer in found) == bad.statuses
        assert PLANTED not in received
        assert REPLY.encode() not in received
        for answer in found:
            told_in_form(answer, bad.listener)
        (good,) = answers(await written(command.port, ask(GOOD, "X-Good: 1")))
        assert good.status == 200
        assert json.loads(good.body)["choices"][0]["message"]["content"] == REPLY
    except (AssertionError, TimeoutError, ValueError, KeyError) as error:
        return f"{bad.name}: {type(error).__name__} {error} {locals().get('received', b'')[:300]!r}"
    return None


async def test_table_of_bad_inputs() -> None:
    """Each of over 400 bad inputs has its answer; none reaches or is told anybody, or breaks us."""
    table = all_of_them()
    assert len({(bad.listener, bad.sent) for bad in table}) == len(table) >= 400
    async with (
        FakeOpenRouter([Reply(REPLY)]) as fake,
        serving(
            fake.base_url,
            log__level="debug",
            upstream__api_key="sk-operator-pl4nted",
            server__client_tokens=TOKEN,
            server__max_body_bytes=str(MAX_BODY_BYTES),
            server__head_timeout_s="0.8",
            server__body_timeout_s="0.8",
            server__idle_timeout_s="1",
        ) as command,
    ):
        gate = asyncio.Semaphore(AT_ONCE)

        async def passed(bad: BadInput) -> str | None:
            async with gate:
                return await tried(command, bad)

        wrong = [fault for fault in await asyncio.gather(*map(passed, table)) if fault]
        metrics = await written(
            int(command.admin.rpartition(":")[2]),
            ask(b"", path="/metrics", method="GET", token=None),
        )
        command.terminate()
        status = await command.ended()
    forwarded = [request for request in fake.requests if "x-good" not in request.headers]
    print(f"\n{len(table)} bad inputs:", dict(Counter(bad.name.split(":")[0] for bad in table)))
    print("answered with:", dict(Counter(bad.statuses for bad in table)))
    print(f"not so: {len(wrong)}; forwarded: {len(forwarded)}; exit status: {status}")
    assert wrong == []
    assert [(request.method, request.path) for request in forwarded] == []
    assert len(fake.requests) == len(table)
    assert {request.path for request in fake.requests} == {CHAT.removeprefix("/v1")}
    log = "".join(command.lines)
    assert PLANTED.decode() not in log
    assert REPLY not in log
    assert {json.loads(line)["level"] for line in command.lines} <= {"info", "debug"}
    assert PLANTED not in metrics
    assert status == 0


async def test_body_that_breaks_later_reaches_nobody_whole() -> None:
    """A body whose framing breaks on the way is no whole request upstream, and no second one."""
    async with (
        FakeOpenRouter() as fake,
        serving(fake.base_url, server__body_timeout_s="0.3") as command,
        connected(command.port) as caller,
    ):
        await caller.write(
            ask(b"2\r\n{}\r\n", "Transfer-Encoding: chunked", path="/v1/echo", length=None)
        )
        await turning_until(lambda: [request.body for request in fake.requests] == [b"{}"])
        await caller.write(b"zz\r\n\r\n0\r\n\r\n" + SMUGGLED)
        with contextlib.suppress(ConnectionError):
            assert b"smuggled" not in await caller._reader.read(-1)
        await fake.requests[0].left()
        assert not fake.requests[0].answered
        assert [request.path for request in fake.requests] == ["/echo"]
