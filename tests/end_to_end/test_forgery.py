"""What a caller or an upstream writes cannot pass for something that loopguard says."""

import json
import re

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from loopguard.log import MAX_TEXT_CHARS
from tests.end_to_end.command import Command, serving
from tests.end_to_end.raw_caller import CHAT, connected
from tests.fake_openrouter import FakeOpenRouter, Message, Reply

# Ends of lines of every kind, a terminal's escapes, a mark that turns the reading direction, half a
# pair, and what would close a label, a field or a record. Short enough for a label.
FORGED = (
    '{"level":"error"}\r\n2026-11-30T00:00:00.000+00:00 error x: y\x0b\x0c\x1b[31m\x1b]0;y\x07'
    '\x85\u2028\u2029\u202e\ud83d\0"} forged{a="b"} 1\\'
)
LONG = "forged " * 2_000
RUNS = (b"r", "run\u2028\u202e".encode(), b"run\xff\xfe\xed\xa0\x80", b'run"} 1\t\\n')

# No line is longer: an exchange has a dozen fields of text, each attempt half a dozen.
LONGEST_LINE_CHARS = 6 * 40 * MAX_TEXT_CHARS


async def ask_in_forged_names(command: Command) -> None:
    """Requests that loop in every attempt, so that their names reach every place."""
    for number, run in enumerate(RUNS):
        names = LONG if number == 1 else f"{number}{FORGED}"
        body = json.dumps({"model": names, "messages": [], "session_id": names}).encode()
        lines = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n".encode()
        async with connected(command.port) as caller:
            await caller.write(lines + b"X-Loopguard-Run: %b\r\n\r\n" % run + body)
            await caller.whole()
        assert caller.error["type"] == "model_response_loop"


async def test_nothing_is_forged() -> None:
    """No name makes a line of the log, steers a terminal, grows a line or forges a series."""
    replies = [
        Reply(Message("void 0; " * 1000), provider=names, model=names, delta_chars=100)
        for names in (FORGED.replace("\ud83d", ""), LONG, "forged")
    ]
    async with (
        FakeOpenRouter(replies) as fake,
        serving(fake.base_url, log__level="debug", retry__max_attempts="2") as command,
        aiohttp.ClientSession() as session,
    ):
        await ask_in_forged_names(command)
        async with session.get(f"{command.admin}/metrics") as response:
            exposed = await response.text()
        command.terminate()
        assert await command.ended() == 0
    exchanges = [line for line in command.lines if '"exchange"' in line or " exchange " in line]
    assert len(exchanges) >= len(RUNS)
    for line in command.lines:
        json.loads(line)
        assert re.fullmatch(r"[ -~]*\n", line)
        assert len(line) < LONGEST_LINE_CHARS
    names = {family.name for family in text_string_to_metric_families(exposed)}
    assert "loopguard_loop_aborts" in names
    assert not any("forged" in name for name in names)
