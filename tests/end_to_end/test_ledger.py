"""What was discarded is in the ledger, durably, and its price turns up there."""

import asyncio
import json
import logging
import socket
import time
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from loopguard.billing import writer
from loopguard.billing.database import ANSWER_WAIT_S, Database
from loopguard.billing.figures import read_entries, summarise
from loopguard.billing.keys import fingerprint
from loopguard.billing.ledger import Ledger
from loopguard.billing.writer import PATIENCE_S as PATIENCE_WITH_IT_S
from loopguard.metrics import Metrics
from tests.end_to_end.command import serving
from tests.end_to_end.conftest import Guard, Guarded
from tests.end_to_end.raw_caller import (
    PATIENCE_S,
    REQUEST,
    STREAM,
    ask,
    calling,
    connected,
    metrics,
    turning_until,
)
from tests.fake_openrouter import FakeOpenRouter, Refusal, Reply, head, loop, pace, reset, stall
from tests.fake_openrouter.generations import COST_USD, record
from tests.ledger_values import abandoned

GOOD = Reply("The good answer.")
KEPT_USD = 0.008262
KEY = "sk-or-v1-caller"


async def run_of(admin: str, run: str = "run-1") -> dict[str, Any]:
    async with aiohttp.ClientSession() as session, session.get(f"{admin}/runs/{run}") as shown:
        assert shown.status == 200
        return await shown.json()


async def close(admin: str, run: str = "run-1", within_s: float = PATIENCE_S) -> dict[str, Any]:
    url = f"{admin}/runs/{run}/close?within_s={within_s}"
    async with aiohttp.ClientSession() as session, session.post(url) as settled:
        assert settled.status == 200
        return await settled.json()


def headers(key: str = KEY, run: str = "run-1") -> dict[str, str]:
    return {"Authorization": f"Bearer {key}", "X-Loopguard-Run": run}


async def entries_of(url: str) -> list[dict[str, Any]]:
    database = Database(url)
    entries = [entry async for entry in read_entries(database)]
    await database.close()
    return entries


async def test_price_appears_after_a_while(guarded: Guard) -> None:
    """Two loops and an answer: the price appears once the record does, and is no work cost."""
    quick = {"ledger__first_look_s": "0.05", "ledger__longest_wait_s": "0.1"}
    async with guarded([loop(), loop(), GOOD], lookups=[404, 404, 404], **quick) as ours:
        await ask(ours, headers=headers())
        figures = await close(ours.admin)
        assert figures["loopAborts"] == 2
        assert figures["loopAbortOwed"] == figures["loopAbortUnpriced"] == 0
        assert figures["workCostUsd"] == KEPT_USD
        assert figures["totalCostUsd"] == pytest.approx(KEPT_USD + 2 * COST_USD)
        assert len(ours.fake.lookups) == 8
        assert {request.key for request in ours.fake.lookups} == {KEY}


async def test_written_before_the_next_attempt(guarded: Guard) -> None:
    """An abandoned generation is durable by the time that the next attempt arrives."""
    async with guarded([loop(), [head(), stall]]) as ours, calling(ours, headers=headers()):
        await ours.fake.attempt(2)
        (entry,) = await entries_of(ours.ledger_url)
        assert entry["reason"] == "looped"
        assert entry["generation"] == ours.fake.attempts[0].generation_id
        assert (entry["rule"], entry["words"], entry["chars"]) == ("stretch", 960, 3840)
        assert (entry["run"], entry["attempt"]) == ("run-1", 1)
        assert entry["fingerprint"] == fingerprint(KEY)


async def test_killed_and_started_again(tmp_path) -> None:
    """After `kill -9` the price appears all the same, once, and with the operator's own key."""
    environment = {
        "ledger__url": f"sqlite:///{tmp_path}/ledger.db",
        "ledger__first_look_s": "0.05",
        "ledger__longest_wait_s": "0.1",
        "ledger__look_up_timeout_s": "1",
        "upstream__api_key": KEY,
    }
    async with FakeOpenRouter([loop(), loop(), GOOD], lookups=[404] * 1000) as fake:
        async with serving(fake.base_url, **environment) as command:
            async with connected(command.port) as caller:
                await caller.send(REQUEST, headers={"X-Loopguard-Run": "run-1"})
                await caller.whole()
            await fake.until(lambda: len(fake.lookups) >= 4)
            await command.kill()
        fake._lookups.clear()
        asked_before = len(fake.lookups)
        async with serving(fake.base_url, **environment) as again:
            figures = await close(again.admin)
            # The row of the exchange was on its way; what it discarded was written at once.
            assert figures["loopAborts"] == 2
            assert figures["loopAbortOwed"] == 0
            assert figures["totalCostUsd"] - figures["workCostUsd"] == pytest.approx(2 * COST_USD)
            assert len(fake.lookups) == asked_before + 2


async def test_waits_for_its_callers_key(tmp_path) -> None:
    """After a restart an entry waits until its caller comes again, and is priced then."""
    environment = {
        "ledger__url": f"sqlite:///{tmp_path}/ledger.db",
        "ledger__first_look_s": "0.05",
        "ledger__look_up_timeout_s": "0.5",
    }
    async with FakeOpenRouter([loop(), GOOD], lookups=[404] * 1000) as fake:
        for other_run in ("run-1", "run-2"):
            async with serving(fake.base_url, **environment) as command:
                if other_run == "run-2":
                    asked_before = len(fake.lookups)
                    assert (await close(command.admin, within_s=0.5))["loopAbortOwed"] == 1
                    assert len(fake.lookups) == asked_before
                async with connected(command.port) as caller:
                    await caller.send(REQUEST, headers=headers(run=other_run))
                    await caller.whole()
                if other_run == "run-2":
                    assert (await close(command.admin))["loopAbortOwed"] == 0
                await command.kill()
            fake._lookups.clear()


async def departed(ours: Guarded) -> None:
    """A caller who leaves when the reply has begun."""
    count = len(ours.records)
    async with calling(ours, STREAM, headers() | {"X-Loopguard-Relay": "live"}) as caller:
        await caller.until(b"data: ")
        caller.leave()
        await turning_until(lambda: len(ours.records) > count)


DRIPPING = [head(), pace(0.05), *Reply("still at it " * 1000).events()]
HAND_COUNT = {
    "run": "run-1",
    "turns": 20,
    "errors": 4,
    "loopAborts": 8,
    "loopAbortWords": 8 * 960,
    "loopAbortChars": 8 * 3840,
    "loopAbortUnpriced": 1,
    "loopAbortOwed": 0,
}


async def test_hand_count(guarded: Guard, monkeypatch, capsys) -> None:
    """A run of 20 exchanges that holds every reason comes to what a hand counts."""
    begun = list(GOOD.events())[:3]
    script = [
        *[GOOD] * 8,  # 8 turns
        *[loop(), GOOD] * 4,  # 4 turns, 4 loops
        *[loop()] * 4,  # 1 turn, 1 error, 4 loops
        [head(), *begun, stall],
        GOOD,  # 1 turn, 1 stalled
        [head(), *begun, reset],
        GOOD,  # 1 turn, 1 broken
        Refusal(400),  # 1 turn, 1 error, nothing abandoned
        DRIPPING,  # 1 turn, 1 error, 1 timed out
        DRIPPING,
        DRIPPING,  # 2 turns, 2 departed
        DRIPPING,  # 1 turn, 1 error, 1 drained
    ]
    quick = {
        "ledger__longest_wait_s": "0.02",  # once it is asked for: nothing is looked up before
        "ledger__give_up_after_s": "0.06",
        "profiles__default__stream_idle_s": "1",
        "profiles__default__call_timeout_s": "2",
        "loop_memory__ttl_s": "0",
        "server__drain_s": "0",
    }
    async with guarded(script, **quick) as ours:
        for _ in range(8 + 4 + 1 + 1 + 1 + 1 + 1):
            await ask(ours, headers=headers())
        await departed(ours)
        await departed(ours)
        async with calling(ours, STREAM, headers() | {"X-Loopguard-Relay": "live"}) as caller:
            await caller.until(b"data: ")
            await ours.loopguard.drain()
        first_loop = ours.fake.attempts[8].generation_id
        del ours.fake.generations[first_loop]
        figures = await close(ours.admin)
        abandoned_usd = (8 - 1 + 1 + 1 + 1 + 2 + 1) * COST_USD
        assert figures.pop("workCostUsd") == pytest.approx(14 * KEPT_USD)
        assert figures.pop("totalCostUsd") == pytest.approx(14 * KEPT_USD + abandoned_usd)
        by_model = figures.pop("byModel")
        assert figures == HAND_COUNT
        assert by_model == {"m/x": {name: n for name, n in HAND_COUNT.items() if "loop" in name}}
        reasons = [entry["reason"] for entry in await entries_of(ours.ledger_url)]
    assert sorted(set(reasons)) == sorted(
        ["looped", "stalled", "broken", "timed_out", "departed", "drained"]
    )
    assert len(reasons) == 14
    database = Database(ours.ledger_url)
    (line,) = (await summarise(database, "run")).values()
    await database.close()
    assert (line.turns, line.errors, line.loop_aborts) == (20, 4, 8)
    assert (line.abandoned, line.abandoned_owed, line.abandoned_unpriced) == (14, 0, 1)
    assert float(line.total_cost_usd) == pytest.approx(14 * KEPT_USD + abandoned_usd)


async def test_what_nobody_generated(guarded: Guard) -> None:
    """Refusals, and an upstream that cannot be reached, leave no entry; silence leaves one."""
    async with guarded([Refusal(429)] * 4) as ours:
        await ask(ours, headers=headers())
        assert await entries_of(ours.ledger_url) == []
    async with guarded([], upstream__base_url="http://127.0.0.1:1/v1") as ours:
        assert (await ask(ours, headers=headers())).status == 502
        assert await entries_of(ours.ledger_url) == []
        assert (await run_of(ours.admin))["errors"] == 2
    async with (
        guarded([[stall]]) as ours,
        calling(ours, headers=headers()) as caller,
    ):
        await ours.fake.attempt(1)
        caller.leave()
        await turning_until(lambda: bool(ours.records))
        (entry,) = await entries_of(ours.ledger_url)
        assert (entry["reason"], entry["unpriced_reason"]) == ("departed", "no_id")


@pytest.mark.parametrize("name", [7, {"id": "x"}, ["x"], True])
async def test_names_that_are_no_text(guarded: Guard, name: object) -> None:
    """What an upstream names oddly is nameless in the ledger, and holds no other row up."""
    environ = {"profiles__default__escape__steps": "ignore_provider"}
    odd = replace(loop(), provider=name, model=name)
    async with guarded([odd, replace(GOOD, provider=name)], **environ) as ours:
        caller = await ask(ours, headers=headers())
        assert json.loads(caller.body)["provider"] == name
        assert (await run_of(ours.admin))["turns"] == 1
        (entry,) = await entries_of(ours.ledger_url)
        assert (entry["model"], entry["provider"], entry["reason"]) == ("m/x", None, "looped")


PLANTED = "sk-or-v1-planted-5f2b8c"


async def test_key_is_nowhere(tmp_path) -> None:
    """A planted key is in no file of the ledger, no line of the log, no metric and no figure."""
    environment = {
        "ledger__url": f"sqlite:///{tmp_path}/ledger.db",
        "ledger__first_look_s": "0.05",
        "ledger__longest_wait_s": "0.1",
        "log__level": "debug",
    }
    script = [loop(), GOOD, [head(), *list(GOOD.events())[:3], reset], GOOD]
    async with (
        FakeOpenRouter(script, lookups=[404, 401, 500]) as fake,
        serving(fake.base_url, **environment) as command,
    ):
        for _ in range(2):
            async with connected(command.port) as caller:
                await caller.send(REQUEST, headers=headers(PLANTED))
                await caller.whole()
        figures = await close(command.admin, within_s=2)
        series = await metrics(command.admin)
        assert {request.key for request in fake.lookups} == {PLANTED}
        command.terminate()
        assert await command.ended() == 0
    written = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    told = "".join(command.lines) + json.dumps(figures) + str(series)
    assert fingerprint(PLANTED).encode() in written
    assert PLANTED.encode() not in written
    assert PLANTED not in told


@pytest.mark.parametrize("silent", [False, True], ids=["refuses", "never answers"])
async def test_database_away(
    guarded: Guard,
    monkeypatch: pytest.MonkeyPatch,
    silent: bool,  # noqa: FBT001
) -> None:
    """With the database away a caller's request neither fails nor waits."""
    monkeypatch.setattr(writer, "PATIENCE_S", PATIENCE_WITH_IT_S)
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1] if silent else 1
        url = f"postgresql://user@127.0.0.1:{port}/ledger"
        async with guarded([loop(), GOOD], ledger__url=url) as ours:
            begun_s = time.monotonic()
            for _ in range(10):
                ours.fake.script = [loop(), GOOD]
                caller = await ask(ours, headers=headers())
                assert caller.status == 200
            assert time.monotonic() - begun_s < ANSWER_WAIT_S  # the longest wait for a database
            series = await metrics(ours.admin)
            assert series["loopguard_ledger_backlog_rows"] >= 10
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"{ours.admin}/runs/run-1") as shown,
            ):
                assert shown.status == 503


@pytest.mark.parametrize("within_s", ["soon", "-1", "1e9", "nan"])
async def test_close_refuses_times_that_are_none(guarded: Guard, within_s: str) -> None:
    """Closing a run within a time that is none is refused."""
    async with guarded([GOOD]) as ours, aiohttp.ClientSession() as session:
        url = f"{ours.admin}/runs/run-1/close?within_s={within_s}"
        async with session.post(url) as refused:
            assert refused.status == 400
            assert "within_s" in (await refused.json())["error"]


async def test_close_answers_in_time(guarded: Guard, caplog) -> None:
    """Closing a run answers within the time that the caller gives, and logs one summary."""
    caplog.set_level(logging.INFO)
    async with guarded([loop(), GOOD], lookups=[404] * 1000) as ours:
        await ask(ours, headers=headers())
        begun_s = time.monotonic()
        figures = await close(ours.admin, within_s=0.5)
        assert time.monotonic() - begun_s < 2
        assert figures["loopAbortOwed"] == 1
        (line,) = [line for line in caplog.records if line.getMessage() == "run_summary"]
        assert line.fields == figures


@pytest.mark.parametrize(
    ("names", "session", "run"),
    [
        ({"X-Loopguard-Run": "mine", "X-Session-Id": "theirs"}, "body's", "mine"),
        ({"X-Session-Id": "theirs"}, "body's", "body's"),
        ({"X-Session-Id": "theirs"}, None, "theirs"),
        ({"X-Session-Id": "theirs"}, 7, "theirs"),
        ({}, None, None),
    ],
)
async def test_run_is_named(
    guarded: Guard, names: dict[str, str], session: object, run: str | None
) -> None:
    """A run is named by our header, else by the session of the body, else by that header."""
    async with guarded([loop(), GOOD]) as ours:
        body = REQUEST if session is None else {**REQUEST, "session_id": session}
        await ask(ours, body, names | {"Authorization": f"Bearer {KEY}"})
        (entry,) = await entries_of(ours.ledger_url)
        assert entry["run"] == run
        assert ours.records[0].run == run


async def test_two_replicas_share_a_ledger(postgres_server) -> None:
    """Of 1,000 owed entries and two replicas, one killed midway, each entry is priced once."""
    url = postgres_server.empty_database()
    ledger = Ledger(Database(url), Metrics(CollectorRegistry()), first_look_s=0.0, lease_s=3.0)
    ledger.start()
    fake = FakeOpenRouter()
    for number in range(1000):
        generation = f"gen-{number}"
        fake.generations[generation] = record(generation, streamed=True, cancelled=True) | {
            "total_cost": number / 1000
        }
        fake._keys[generation] = KEY
    await asyncio.gather(
        *(
            ledger.record(abandoned(str(n), generation=f"gen-{n}", fingerprint=fingerprint(KEY)))
            for n in range(1000)
        )
    )
    assert await ledger.close()
    environment = {
        "ledger__url": url,
        "ledger__look_up_timeout_s": "1",
        "ledger__concurrency": "8",
        "upstream__api_key": KEY,
    }
    async with (
        fake,
        serving(fake.base_url, **environment) as one,
        serving(fake.base_url, **environment),
    ):
        await fake.until(lambda: len(fake.lookups) >= 300)
        await one.kill()
        database = Database(url)
        async with asyncio.timeout(60):
            while (figures := (await summarise(database, "run"))["run-1"]).abandoned_owed:
                pass
        await database.close()
    assert (figures.abandoned, figures.abandoned_unpriced) == (1000, 0)
    assert float(figures.abandoned_cost_usd) == sum(range(1000)) / 1000
    asked = [request.query["id"] for request in fake.lookups]
    assert len(set(asked)) == 1000
    # What the killed one had claimed is all that may have been looked up again.
    assert len(asked) <= 1000 + 8
