"""loopguard in front of a fake, in a thread of its own, for tests that block in a browser."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import aiohttp

from loopguard.app import Loopguard
from loopguard.settings import load
from tests.fake_openrouter import FakeOpenRouter, Refusal
from tests.fake_openrouter.server import Answer

if TYPE_CHECKING:
    from concurrent.futures import Future

PROFILE = """
[profiles.default]
relay = "hold"               # as before
max_identical_calls = 16

# The operator's own words.
[profiles.default.loop_detection]
enabled = true
window_words = 256
repeat_threshold = 32
min_offenders = 2
min_saturated_run = 3000
max_response_chars = 250000

[profiles.default.stretch_detection]
enabled = true
min_stale_chars = 2350       # half a page
novelty_cost_chars = 12
structure_weight = 0.4
data_weight = 0.07

[profiles.unarmed]
"""

_Result = TypeVar("_Result")


@dataclass
class Operated:
    """What a test and its browser look at.

    Attributes:
        api: where callers are served.
        console: the page.
        config: the file.
    """

    api: str
    console: str
    config: Path
    fake: FakeOpenRouter
    loop: asyncio.AbstractEventLoop

    def begin(
        self, model: str = "m/x", *, script: str = "", path: str = "chat/completions", **named: str
    ) -> "Future[tuple[int, str]]":
        """Ask, for a stream where a relay is named; the answer's status and its text.

        Args:
            model: that is asked.
            script: of the fake's.
            path: chat's, or another whose request chat's is as well.
            named: further headers of loopguard's own.
        """

        async def ask() -> tuple[int, str]:
            headers = {f"X-Loopguard-{name}": value for name, value in named.items()}
            headers |= {"Authorization": "Bearer sk-caller", "X-Script": script}
            body = {
                "model": model,
                "messages": [{"role": "user", "content": "hello"}],
                "stream": "Relay" in named,
                "max_tokens": 100_000,
            }
            async with (
                aiohttp.ClientSession() as session,
                session.post(f"{self.api}/v1/{path}", json=body, headers=headers) as response,
            ):
                return response.status, await response.text()

        return asyncio.run_coroutine_threadsafe(ask(), self.loop)

    def ask(self, model: str = "m/x", **named: str) -> tuple[int, str]:
        """Ask, and wait for the answer."""
        return self.begin(model, **named).result(20)

    def seen(self, found: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """What the stream says once it is as expected."""

        async def follow() -> dict[str, Any]:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"{self.console}/now") as response,
            ):
                async for line in response.content:
                    if line.startswith(b"data: "):
                        told: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
                        if found(told):
                            return told
            raise AssertionError("the stream has ended")

        return asyncio.run_coroutine_threadsafe(follow(), self.loop).result(20)

    def request(
        self, method: str, path: str, headers: dict[str, str] | None = None, **named: Any
    ) -> tuple[int, Any, dict[str, str]]:
        """Ask the console itself: the answer's status, its JSON, and its headers."""

        async def ask() -> tuple[int, Any, dict[str, str]]:
            async with (
                aiohttp.ClientSession() as session,
                session.request(
                    method, f"{self.console}{path}", headers=headers, **named
                ) as response,
            ):
                text = await response.text()
                told = json.loads(text) if response.content_type == "application/json" else text
                return response.status, told, dict(response.headers)

        return asyncio.run_coroutine_threadsafe(ask(), self.loop).result(40)


@contextmanager
def operated(
    folder: Path,
    script: Iterable[Answer],
    *,
    lookups: Sequence[int | Refusal] = (),
    server: str = "",
    upstream: str = "",
    retry: str = "initial_wait_s = 0.001       # no test waits",
    profiles: str = PROFILE,
) -> Iterator[Operated]:
    """Serve until the block ends.

    Args:
        folder: for the file and the ledger.
        script: of the fake.
        lookups: likewise.
        server: further lines of the file's table of that name.
        upstream: likewise.
        retry: the lines of that table.
        profiles: the file's last tables.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(30)

    @asynccontextmanager
    async def serving() -> AsyncIterator[Operated]:
        async with FakeOpenRouter(script, lookups=lookups) as fake:
            config = folder / "loopguard.toml"
            config.write_text(
                f"""# Written by a test.
[server]
port = 0
admin_port = 0
{server}

[upstream]
base_url = "{fake.base_url}"
{upstream}

[retry]
{retry}

[ledger]
url = "sqlite:///{folder}/ledger.db"
first_look_s = 3600
{profiles}"""
            )
            async with Loopguard(load(config), path=config) as loopguard:
                yield Operated(
                    f"http://127.0.0.1:{loopguard.api_port}",
                    f"http://127.0.0.1:{loopguard.admin_port}/console",
                    config,
                    fake,
                    loop,
                )

    context = serving()
    try:
        yield run(context.__aenter__())
    finally:
        try:
            run(context.__aexit__(None, None, None))
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
