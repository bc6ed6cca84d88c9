"""The endpoint writes what its script says and knows what its caller read."""

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from loopguard.core import sse
from loopguard.core.dialects import DIALECTS
from loopguard.core.events import (
    CHANNELS,
    ArgumentsDelta,
    Channel,
    ReasoningDelta,
    TextDelta,
)
from loopguard.runaway import ANSWER, UNIT, Record, Script, serving

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
SURVEY_CHARS = 300_048
COMMAND = [sys.executable, "-m", "loopguard"]


@contextlib.asynccontextmanager
async def runaway(
    script: Script,
) -> AsyncIterator[tuple[str, openai.AsyncOpenAI, asyncio.Queue[Record]]]:
    """The endpoint's base URL, a client of it, and the records as they are logged."""
    records: asyncio.Queue[Record] = asyncio.Queue()
    async with (
        serving(script, records.put_nowait) as base_url,
        openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client,
    ):
        yield base_url, client, records


async def streamed(client: openai.AsyncOpenAI, **more: Any) -> str:
    stream = await client.chat.completions.create(**CHAT, **more, stream=True)
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


async def whole(client: openai.AsyncOpenAI) -> str | None:
    return (await client.chat.completions.create(**CHAT)).choices[0].message.content


async def test_a_client_without_a_guard_reads_all_of_it() -> None:
    """The openai client reads 300,048 characters of one sentence and takes them as the answer."""
    async with runaway(Script(pace_s=0)) as (_, client, records):
        text = await streamed(client)
        assert len(text) == SURVEY_CHARS
        assert text == UNIT * (SURVEY_CHARS // len(UNIT))
        record = await records.get()
        assert record.written_chars == SURVEY_CHARS
        assert not record.hung_up
        assert record.stream


async def test_the_whole_reply_says_what_the_stream_says() -> None:
    """Asked for no stream, it gives the same text in one object."""
    script = Script(unit='say "ä🙂"\n', lead_in="Well: ", chars=5_000, delta_chars=7, pace_s=0)
    async with runaway(script) as (_, client, records):
        text = await whole(client)
        assert text == await streamed(client)
        assert text is not None
        assert text.startswith('Well: say "ä🙂"\nsay "ä🙂"\n')
        assert 5_000 <= len(text) < 5_000 + len(script.unit)
        assert [(await records.get()).stream, (await records.get()).stream] == [False, True]


@pytest.mark.parametrize("path", DIALECTS)
@pytest.mark.parametrize("channel", CHANNELS)
async def test_every_wire_is_spoken(path: str, channel: Channel) -> None:
    """On every wire the loop is written where it was asked for, whole as in the stream.

    Legacy Completions has no tools: there the loop of arguments stands in the text.
    """
    script = Script(unit='say "ä🙂"\n', chars=500, delta_chars=7, pace_s=0, channel=channel)
    dialect = DIALECTS[path]
    bodies = []
    async with runaway(script) as (base_url, _, _), aiohttp.ClientSession() as session:
        for stream in (True, False):
            body = {"model": "m", "stream": stream}
            async with session.post(base_url + path, json=body) as response:
                assert response.headers["X-Generation-Id"].startswith("gen-")
                bodies.append(await response.read())
    parser, held = dialect.Parser(), dialect.Held()
    told = dict.fromkeys((TextDelta, ReasoningDelta, ArgumentsDelta), "")
    for block in sse.Decoder(1 << 20).feed(bodies[0]):
        if block.data is not None:
            parsed = parser.parse(block.data)
            held.add(block, parsed)
            for event in parsed.events:
                if type(event) in told:
                    told[type(event)] += event.text
    text = script.reply(1)
    kind = {"content": TextDelta, "reasoning": ReasoningDelta, "arguments": ArgumentsDelta}[channel]
    if channel not in dialect.CHANNELS:
        kind = TextDelta
    written = {kind: json.dumps({"text": text}) if kind is ArgumentsDelta else text}
    assert {kind: text for kind, text in told.items() if text} == written
    assert _nameless(held.whole()) == _nameless(json.loads(bodies[1]))


def _nameless(whole: dict[str, Any]) -> dict[str, Any]:
    """The reply without what differs from request to request."""
    unlike = ("id", "created", "created_at", "service_tier", "system_fingerprint")
    return {name: value for name, value in whole.items() if name not in unlike}


@pytest.mark.parametrize("stream", [True, False])
async def test_what_was_written_is_what_was_read(*, stream: bool) -> None:
    """A caller that hangs up after so many characters is logged with hardly more."""
    async with runaway(Script()) as (base_url, _, records):
        port = int(base_url.split(":")[2].split("/")[0])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = json.dumps(CHAT | {"stream": stream}).encode()
        head = f"POST /api/v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}"
        writer.write(head.encode() + b"\r\n\r\n" + body)
        got = b""
        while (read_chars := got.count(UNIT.encode()) * len(UNIT)) < 16_000:
            got += await reader.read(1_000)
        writer.close()
        record = await records.get()
        assert record.hung_up
        assert record.path == "/api/v1/chat/completions"
        assert read_chars <= record.written_chars <= read_chars + 20 * len(UNIT)


async def test_a_caller_that_stops_reading_stops_the_writing() -> None:
    """To a caller that reads nothing hardly anything is written, and its leaving is seen."""
    async with runaway(Script(pace_s=0)) as (base_url, client, records):
        caller = socket.socket()
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        caller.connect(("127.0.0.1", int(base_url.split(":")[2].split("/")[0])))
        body = json.dumps(CHAT | {"stream": True}).encode()
        caller.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
            % (len(body), body)
        )
        for _ in range(300):  # turns of the loop in which as many deltas could be written
            await client.models.list()
        caller.close()
        record = await records.get()
        assert record.hung_up
        assert 0 < record.written_chars < 10_000


async def test_it_answers_after_as_many_loops_as_it_was_told() -> None:
    """Two replies loop, all further ones are the answer, and the requests are numbered."""
    async with runaway(Script(chars=1_000, loops=2, pace_s=0)) as (_, client, records):
        texts = [await streamed(client), await whole(client)]
        assert all(text is not None and text.startswith(UNIT * 17) for text in texts)
        assert [await whole(client), await streamed(client)] == [ANSWER, ANSWER]
        assert [(await records.get()).attempt for _ in range(4)] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("asked", "cap"),
    [
        ({}, None),
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": 8}, 8),
        ({"max_tokens": None}, None),
    ],
)
async def test_the_cap_that_was_asked_for_is_logged(asked: dict[str, int], cap: int | None) -> None:
    """A request's cap is in its record, under either name, and none where there is none."""
    async with runaway(Script(chars=100)) as (_, client, records):
        await streamed(client, extra_body=asked)
        record = await records.get()
        assert record.cap == cap
        assert record.model == "m"


async def test_a_reply_that_was_cut_has_a_price() -> None:
    """The generation of a caller that left is cancelled, with partial tokens and their cost."""
    async with runaway(Script()) as (base_url, client, records), aiohttp.ClientSession() as session:
        stream = await client.chat.completions.create(**CHAT, stream=True)
        generation_id = (await anext(aiter(stream))).id
        await stream.close()
        written_chars = (await records.get()).written_chars
        async with session.get(f"{base_url}/generation", params={"id": generation_id}) as response:
            generation = (await response.json())["data"]
        assert generation["id"] == generation_id
        assert generation["cancelled"] is True
        assert generation["native_tokens_completion"] == written_chars // 4
        assert 0 < generation["total_cost"] == generation["usage"] < 0.001
        async with session.get(f"{base_url}/generation", params={"id": "gen-other"}) as response:
            assert response.status == 404
            assert (await response.json())["error"] == {
                "message": "Generation gen-other not found",
                "code": 404,
            }


@pytest.mark.parametrize("body", [b"", b"[]", b'"x"', b"{}", b"{"])
async def test_a_request_that_is_none_is_refused(body: bytes) -> None:
    """A body that is no object with a model is refused in the API's shape and counts as nothing."""
    async with runaway(Script(chars=100)) as (base_url, client, records):
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{base_url}/chat/completions", data=body) as response,
        ):
            assert response.status == 400
            assert (await response.json())["error"]["code"] == 400
        await whole(client)
        assert (await records.get()).attempt == 1


async def test_it_lists_a_model() -> None:
    """A client that lists the models first finds one."""
    async with runaway(Script()) as (_, client, _):
        assert [model.id async for model in client.models.list()] == ["loopguard/runaway"]


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_the_command_logs_json_lines_and_ends_when_told(
    tmp_path: Path, ending: signal.Signals
) -> None:
    """The command says where it listens, logs each request, and ends cleanly in mid-reply."""
    log = tmp_path / "runaway.jsonl"
    command = [*COMMAND, "runaway", "--port", "0", "--unit", "void 0; ", "--log", str(log)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as runs:
        assert runs.stderr is not None
        base_url = runs.stderr.readline().split()[-1]
        with openai.OpenAI(base_url=base_url, api_key="none") as client:
            stream = client.chat.completions.create(**CHAT, stream=True)
            assert next(iter(stream)).choices[0].delta.content == "void 0; " * 7
            runs.send_signal(ending)
            with pytest.raises(openai.APIConnectionError):
                list(stream)
        assert runs.wait(10) == 0
        assert runs.stderr.read() == ""
    record = json.loads(log.read_text())
    assert list(record) == list(Record.__annotations__)
    assert not record["hung_up"]
    assert record["cap"] is None


def test_a_port_in_use_is_said() -> None:
    """A port that is taken ends the command with a sentence and status 1."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = subprocess.run(
            [*COMMAND, "runaway", "--port", port], capture_output=True, text=True, check=False
        )
    assert ended.returncode == 1
    assert ended.stderr.startswith("loopguard runaway: ")
    assert "Traceback" not in ended.stderr
