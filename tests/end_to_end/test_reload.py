"""The configuration is read again: what comes is served by it, what runs keeps its own."""

import asyncio
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.end_to_end.command import serving
from tests.end_to_end.conftest import Guard, Guarded
from tests.end_to_end.raw_caller import (
    REQUEST,
    ask,
    calling,
    connected,
    metrics,
)
from tests.fake_openrouter import FakeOpenRouter, Refusal, Reply, head, reset, wait

GOOD = Reply("The good answer.")
BUSY = Refusal(503)


def toml(attempts: int, more: str = "") -> str:
    return f"retry.max_attempts = {attempts}\n{more}\n[profiles.default]\n"


async def post(url: str, **headers: str) -> tuple[int, dict[str, Any]]:
    async with aiohttp.ClientSession() as session, session.post(url, headers=headers) as answer:
        return answer.status, await answer.json()


async def reload(ours: Guarded, text: str, **headers: str) -> tuple[int, dict[str, Any]]:
    assert ours.config is not None
    ours.config.write_text(text, "utf-8")
    return await post(f"{ours.admin}/config/reload", **headers)


async def attempts_of_one(ours: Guarded) -> int:
    return int((await ask(ours)).headers["x-loopguard-attempts"])


async def test_what_runs_keeps_what_it_began_with(guarded: Guard) -> None:
    """After a reload the budget of a running exchange is the old one, of the next one the new."""
    gate = asyncio.Event()
    async with guarded([[head(), wait(gate), reset], BUSY], toml=toml(3)) as ours:
        async with calling(ours) as running:
            await ours.fake.attempt(1)
            assert await reload(ours, toml(1)) == (
                200,
                {"reloaded": True, "warnings": [], "workers": 1, "using": 1},
            )
            assert await attempts_of_one(ours) == 1
            gate.set()
            await running.whole()
            assert running.headers["x-loopguard-attempts"] == "3"
        assert await attempts_of_one(ours) == 1


async def test_what_is_refused_changes_nothing(
    guarded: Guard, caplog: pytest.LogCaptureFixture
) -> None:
    """Faults are answered as the launch names them, logged and counted, and the old one stays."""
    missing = "missing; an armed detector writes all five knobs"
    faults = [
        "retry.max_attempts: must be 1 or more",
        f"profile `writer`: loop_detection.min_offenders: {missing}",
    ]
    knobs = "enabled = true\nwindow_words = 256\nrepeat_threshold = 32\nmin_saturated_run = 0\n"
    writer = f"[profiles.writer.loop_detection]\n{knobs}max_response_chars = 0"
    began_s = time.time()
    async with guarded([BUSY], toml=toml(2)) as ours:
        read_s = (await metrics(ours.admin))["loopguard_config_read_timestamp_seconds"]
        assert began_s <= read_s <= time.time()
        status, told = await reload(ours, toml(0) + writer)
        assert (status, told) == (422, {"reloaded": False, "faults": faults})
        for fault in faults:
            assert f"the configuration is refused and the old one stays: {fault}" in caplog.messages
        assert await attempts_of_one(ours) == 2
        series = await metrics(ours.admin)
        assert series["loopguard_config_reloads_total{refused}"] == 1
        assert series["loopguard_config_reloads_total{used}"] == 0
        assert series["loopguard_config_read_timestamp_seconds"] == read_s
        assert (await reload(ours, toml(1)))[0] == 200
        series = await metrics(ours.admin)
        assert series["loopguard_config_reloads_total{used}"] == 1
        assert series["loopguard_config_read_timestamp_seconds"] > read_s


async def test_what_waits_for_the_next_start_is_named(
    guarded: Guard, caplog: pytest.LogCaptureFixture
) -> None:
    """What cannot change now is named in the answer and in the log, each time, and is kept."""
    later = {"server.admin_port", "server.max_body_bytes", "ledger.retention_days"}
    more = "server.max_body_bytes = 1\nledger.retention_days = 1\nserver.admin_port = 0"
    async with guarded([BUSY], toml=toml(2), server__admin_port="") as ours:
        for attempts in (1, 2):
            status, told = await reload(ours, toml(attempts, more))
            assert status == 200
            waiting = [f"{key}: takes effect at the next start" for key in sorted(later)]
            assert sorted(told["warnings"]) == waiting
            assert set(waiting) <= set(caplog.messages)
            caplog.clear()
            assert await attempts_of_one(ours) == attempts


async def test_no_open_relay_by_halves(guarded: Guard) -> None:
    """A key whose tokens are taken away is refused while the listener is still open to others."""
    key = 'upstream.api_key = "sk-operator"'
    others = f'server.host = "0.0.0.0"\nserver.client_tokens = ["t0ken"]\n{key}'
    async with guarded([GOOD], toml=toml(1, others)) as ours:
        status, told = await reload(ours, toml(1, key))
        assert status == 422
        assert told["faults"][0].startswith("server.client_tokens: needed, ")
        assert told["faults"][1] == "server.host: takes effect at the next start"
        assert (await ask(ours)).status == 401


async def test_a_key_is_changed_without_a_restart(guarded: Guard, tmp_path: Path) -> None:
    """What comes after a reload goes upstream with the key that its file holds by then."""
    secret = tmp_path / "key"
    more = f'upstream.api_key_file = "{secret}"'
    secret.write_text("sk-old")
    async with guarded([GOOD], toml=toml(1, more)) as ours:
        for key in ("sk-old", "sk-new"):
            secret.write_text(key)
            assert (await post(f"{ours.admin}/config/reload"))[0] == 200
            await ask(ours)
            assert ours.fake.attempts[-1].key == key


async def test_every_worker_and_its_successor(tmp_path: Path) -> None:
    """SIGHUP changes all workers, and a successor serves by what is in use, not by the file."""
    config = tmp_path / "loopguard.toml"
    config.write_text(toml(2, "server.workers = 2"), "utf-8")
    async with (
        FakeOpenRouter([BUSY]) as fake,
        serving(fake.base_url, config) as command,
    ):

        async def attempts_of_each() -> set[str]:
            async with connected(command.port) as one, connected(command.port) as other:
                for caller in (one, other):
                    await caller.send(REQUEST)
                    await caller.whole()
                return {caller.headers["x-loopguard-attempts"] for caller in (one, other)}

        assert await attempts_of_each() == {"2"}
        config.write_text(toml(1, "server.workers = 3"), "utf-8")
        command.hang_up()
        await command.line("the configuration was read again")
        await command.line("server.workers: takes effect at the next start")
        assert await attempts_of_each() == {"1"}
        config.write_text("no TOML", "utf-8")
        first, _ = await command.workers(2)
        os.kill(first, signal.SIGKILL)
        await command.workers(3)
        assert await attempts_of_each() == {"1"}
        assert (await post(f"{command.admin}/config/reload"))[0] == 422
        config.write_text(toml(3, "server.workers = 2"), "utf-8")
        assert await post(f"{command.admin}/config/reload") == (
            200,
            {"reloaded": True, "warnings": [], "workers": 2, "using": 2},
        )
        assert await attempts_of_each() == {"3"}


@pytest.mark.parametrize("path", ["/config/reload", "/runs/x/close"])
async def test_who_may_change(guarded: Guard, path: str) -> None:
    """A change presents the admin token, or comes from this machine where there is none."""
    right, wrong = ({"Authorization": f"Bearer {token}"} for token in ("s3cret", "s3cret2"))
    async with guarded([GOOD], toml=toml(1)) as ours:
        url = ours.admin + path
        assert (await post(url))[0] == 200
        assert (await post(url, Origin=ours.admin))[0] == 200
        assert (await post(url, Origin="http://evil.example"))[0] == 403
        assert (await post(url, **{"Sec-Fetch-Site": "cross-site"}))[0] == 403
        assert (await post(url, **{"X-Forwarded-For": "10.0.0.1"}))[0] == 403
        assert (await post(url, Host="evil.example"))[0] == 421
        assert (await reload(ours, toml(1, 'server.admin_token = "s3cret"')))[0] == 200
        assert (await post(url))[0] == 401
        assert (await post(url, **wrong))[0] == 401
        assert (await post(url, **right))[0] == 200
        assert (await post(url, **right, Origin="http://evil.example"))[0] == 403
        assert "s3cret" not in json.dumps(await post(url, **wrong))
