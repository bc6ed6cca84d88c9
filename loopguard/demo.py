"""Ask a fake model that loops twice and then answers, without loopguard and with it in between.

No key and no network are needed: the model and the guard listen on free ports of the loopback
address. The exit status is 0 only when the guard did what it is for.
"""

import argparse
import asyncio
import json
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp

from loopguard import log
from loopguard.app import Loopguard
from loopguard.proxy.record import AttemptRecord, ExchangeRecord
from loopguard.runaway import Record, Script, serving
from loopguard.settings import load

SETTINGS = Path(__file__).with_name("demo.toml")

SCRIPT = Script(unit="void 0; ", loops=2, delta_chars=64)
"""At 64 characters a millisecond the unguarded reading lasts long enough to be watched."""

TRIP_WORDS, TRIP_CHARS = 3065, 12261
"""Where the frequency rule cuts `void 0; `: with its 3,000th saturated word."""

DEADLINE_S = 60
"""Ten times what both parts take; then something hangs."""

PROGRESS_CHARS = 100_000


def add_arguments(_: argparse.ArgumentParser) -> None:
    """The command has no options."""


def run(_: argparse.Namespace) -> int:
    """Show the demonstration; the exit status."""
    log.configure("error", "text")  # the demonstration tells the rest itself
    try:
        faults = asyncio.run(demonstrate(SCRIPT, {}, _tell))
    except TimeoutError:
        faults = [f"it was not done after {DEADLINE_S} s"]
    _tell("")
    for fault in faults:
        _tell(f"The guard failed: {fault}.")
    if not faults:
        _tell("The guard worked: both loops were cut, and the caller got the answer alone.")
    return 1 if faults else 0


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def demonstrate(
    script: Script, environ: Mapping[str, str], tell: Callable[[str], None]
) -> list[str]:
    """Ask the model directly, then through loopguard.

    Args:
        script: what the model writes; it loops twice.
        environ: settings over those of `demo.toml`, as environment variables.
        tell: shows a line to a person.

    Returns:
        What the guard failed to do, one sentence each; empty when it worked.

    Raises:
        TimeoutError: something hangs.
    """
    async with asyncio.timeout(DEADLINE_S):
        tell(f"1. A model that repeats {script.unit!r}, asked as any framework asks\n")
        await _ask_unguarded(script, tell)
        tell("\n2. The same model, asked through loopguard\n")
        return await _ask_guarded(script, environ, tell)


async def _ask_unguarded(script: Script, tell: Callable[[str], None]) -> None:
    async with serving(script, lambda _: None) as model:
        tell(f"   model      {model}")
        asked_at = time.monotonic()
        reply = ""
        async for delta in _deltas(model):
            before, reply = len(reply), reply + delta
            if before // PROGRESS_CHARS < len(reply) // PROGRESS_CHARS:
                tell(f"   reading    {len(reply):,} characters")
        tell(f"   reply      {reply[:48]}...")
        tell(f"   ended      after {time.monotonic() - asked_at:.1f} s; all of it is the answer")


async def _ask_guarded(
    script: Script, environ: Mapping[str, str], tell: Callable[[str], None]
) -> list[str]:
    seen_by_model: list[Record] = []
    exchanges: asyncio.Queue[ExchangeRecord] = asyncio.Queue()
    with TemporaryDirectory() as folder:
        ledger = {"LOOPGUARD_LEDGER__URL": f"sqlite:///{folder}/ledger.db"}
        async with serving(script, seen_by_model.append) as model:
            settings = load(SETTINGS, {"LOOPGUARD_UPSTREAM__BASE_URL": model, **environ, **ledger})
            async with Loopguard(settings, exchanges.put_nowait) as loopguard:
                guard = f"http://127.0.0.1:{loopguard.api_port}/v1"
                tell(f"   model      {model}")
                tell(f"   loopguard  {guard}")
                answer = "".join([delta async for delta in _deltas(guard)])
                exchange = await exchanges.get()
    for attempt, seen in zip(exchange.attempts, seen_by_model, strict=False):
        for line in attempt_lines(attempt, seen):
            tell(line)
    figures = exchange.figures()
    tell(
        f"   discarded  {figures.loop_aborts} replies: {figures.loop_abort_words:,} words, "
        f"{figures.loop_abort_chars:,} characters, none of which the caller saw"
    )
    tell(f"   answer     {answer[:72]}")
    return faults_of(script, answer, exchange.attempts, seen_by_model)


async def _deltas(base_url: str) -> AsyncIterator[str]:
    """The answer of a streamed chat completion, as it arrives."""
    body = {
        "model": "loopguard/runaway",
        "messages": [{"role": "user", "content": "Write the file."}],
        "stream": True,
    }
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{base_url}/chat/completions", json=body) as response,
    ):
        async for line in response.content:
            if line.startswith(b"data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    yield choice["delta"].get("content") or ""


def attempt_lines(attempt: AttemptRecord, seen: Record) -> list[str]:
    """One attempt as a person reads it: how it ended, why, and what the model's side saw."""
    name = f"   attempt {attempt.attempt}  "
    if attempt.trip is None:
        ending = f"{attempt.outcome} after {attempt.duration_s:.1f} s, {attempt.chars:,} characters"
        return [name + ending]
    cut = (
        f"cut after {attempt.duration_s:.1f} s at word {attempt.words:,}, "
        f"character {attempt.chars:,}"
    )
    witness = f"the model saw its caller hang up after {seen.written_chars:,} characters"
    why = textwrap.wrap(attempt.trip, 84, initial_indent=" " * 14, subsequent_indent=" " * 14)
    return [name + cut, *why, " " * 14 + witness]


def faults_of(
    script: Script, answer: str, attempts: list[AttemptRecord], seen: list[Record]
) -> list[str]:
    """What differs from two loops cut where the rule says and the answer delivered."""
    faults = []
    if [attempt.outcome for attempt in attempts] != ["looped", "looped", "completed"]:
        faults.append("the attempts are not two loops and a reply that completed")
    for attempt in attempts:
        place = (attempt.words, attempt.chars)
        if attempt.outcome == "looped" and place != (TRIP_WORDS, TRIP_CHARS):
            faults.append(f"attempt {attempt.attempt} was cut at word %d, character %d" % place)
    if [record.hung_up for record in seen] != [True, True, False]:
        faults.append("the model was not hung up on twice")
    if answer != script.answer:
        faults.append("the caller did not get the answer")
    return faults
