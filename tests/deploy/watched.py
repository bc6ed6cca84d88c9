"""A real Prometheus that watches a real loopguard under load, as an operator would have it."""

import asyncio
import contextlib
import itertools
import json
import random
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from tests.end_to_end.command import serving
from tests.end_to_end.raw_caller import PATIENCE_S
from tests.fake_openrouter import FakeOpenRouter, Refusal, Reply, Step, head, loop, stall
from tests.fake_openrouter.server import MODEL, Answer, Request

DEPLOY = Path(__file__).parents[2] / "deploy"

TOKEN = "t0ken"

SCRAPE_S = 1
"""Instead of the fifteen seconds that are shipped: nobody sits through a minute here."""

_CALLERS = 4

# Model, the share of its attempts that loop, where they loop, and what a token costs in USD.
_MODELS = (
    ("deepseek/deepseek-chat", 0.25, "content", "0.00000089"),
    ("qwen/qwen3-coder", 0.12, "arguments", "0.0000010"),
    ("meta-llama/llama-3.3-70b-instruct", 0.06, "reasoning", "0.0000004"),
    ("openai/gpt-4o-mini", 0.01, "content", "0.0000006"),
)
_CAP_TOKENS = 32_768
_CUT_TOKENS = 1_100

# Its records are never found, so what is thrown away of it gets no price.
_UNRECORDED = "mistralai/mistral-small"

_HOPELESS = "Write the file, whatever it takes."
_SILENT = "Think about it."

_LISTENING = re.compile(r'msg="Listening on" address=(\S+)')


class Models(FakeOpenRouter):
    """An upstream whose models loop as often as each does, by a die that falls alike every time."""

    def __init__(self) -> None:
        super().__init__()
        self.models = [
            MODEL
            | {
                "id": name,
                "pricing": {"completion": token_usd},
                "top_provider": {"max_completion_tokens": _CAP_TOKENS},
            }
            for name, _, _, token_usd in _MODELS
        ]
        self._dice = random.Random(7)
        self._loops = itertools.count()
        self._asked: dict[str, str] = {}

    def _next_answer(self, request: Request) -> Iterable[Step]:
        self._asked[request.generation_id] = request.json["model"]
        self.script = [self._choose(request.json)]
        return super()._next_answer(request)

    def _choose(self, asked: dict[str, Any]) -> Answer:
        drawn = self._dice.random()
        loops, where = {name: (share, where) for name, share, where, _ in _MODELS}.get(
            asked["model"], (0.5, "content")
        )
        match asked["messages"][0]["content"]:
            case prompt if prompt.startswith(_HOPELESS):
                loops = 1.0
            case prompt if prompt == _SILENT:
                return [head(), stall]
        if drawn < loops:
            # Each of them differs, or the second one alike would end the retrying.
            return loop(f"void {next(self._loops)}; ", channel=where)
        if drawn > 0.98:
            return Refusal(429, retry_after=0)
        return Reply("The good answer.")

    def _lookup(self, request: Request) -> Iterable[Step]:
        generation = request.query["id"]
        model = self._asked.get(generation)
        if model == _UNRECORDED:
            return Refusal(404).steps()
        prices = {name: float(token_usd) for name, _, _, token_usd in _MODELS}
        if generation in self.generations and model in prices:
            self.generations[generation] |= {
                "native_tokens_completion": _CUT_TOKENS,
                "total_cost": round(2 * _CUT_TOKENS * prices[model], 9),
            }
        return super()._lookup(request)


@dataclass(frozen=True)
class Watched:
    """Prometheus' API.

    Attributes:
        url: of Prometheus.
    """

    url: str

    async def get(self, path: str, **asked: Any) -> Any:
        """What Prometheus answers, its envelope taken off."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{self.url}/api/v1/{path}", params=asked) as response,
        ):
            answer = await response.json()
        assert answer["status"] == "success", (asked, answer)
        return answer["data"]

    async def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of an expression now, each with its labels and its value."""
        return (await self.get("query", query=expression))["result"]

    async def query_range(
        self, expression: str, start_s: float, end_s: float, step_s: float
    ) -> list[dict[str, Any]]:
        """The series of an expression over a time, each with its labels and its values."""
        answered = await self.get(
            "query_range", query=expression, start=start_s, end=end_s, step=step_s
        )
        return answered["result"]


@asynccontextmanager
async def watched(folder: Path, rest_s: float = 0.0) -> AsyncIterator[Watched]:
    """Prometheus with the rules as they are shipped, loopguard with callers who keep asking.

    Args:
        folder: for what the processes write.
        rest_s: seconds that a caller rests between two requests, at the most.
    """
    environment = {
        "upstream__api_key": "sk-operator",
        "server__client_tokens": TOKEN,
        "ledger__url": f"sqlite:///{folder}/ledger.db",
        "ledger__first_look_s": "0.1",
        "ledger__longest_wait_s": "0.2",
        "ledger__give_up_after_s": "1",
        "upstream__first_delta_timeout_s": "0.5",
    }
    async with (
        Models() as fake,
        serving(fake.base_url, **environment) as command,
        _prometheus(folder, command.admin.removeprefix("http://")) as prometheus,
    ):
        calling = [
            asyncio.create_task(_keep_asking(command.port, number, rest_s))
            for number in range(_CALLERS)
        ]
        try:
            yield prometheus
        finally:
            for caller in calling:
                caller.cancel()
            ended = await asyncio.gather(*calling, return_exceptions=True)
        assert [type(end) for end in ended] == [asyncio.CancelledError] * _CALLERS, ended


async def _keep_asking(port: int, number: int, rest_s: float) -> None:
    """Ask as agents do, some of them wrongly; a caller that leaves does so in mid-reply."""
    dice = random.Random(number)
    origin = f"http://127.0.0.1:{port}"
    good = {"Authorization": f"Bearer {TOKEN}"}
    names = [name for name, *_ in _MODELS]
    async with aiohttp.ClientSession() as session:
        for turn in itertools.count():
            await asyncio.sleep(dice.random() * rest_s)
            profile = dice.choice(("", "", "/profiles/document"))
            url = f"{origin}{profile}/v1/chat/completions"
            # Each asks for something of its own, or loop memory would refuse all after one.
            prompt = f"Tell me something good, the {turn}th thing for {number}."
            model, headers, leave_s = dice.choice(names), good, None
            match turn % 20:
                case 3:
                    model, prompt = dice.choice(names[:2]), f"{_HOPELESS} {dice.randrange(3)}"
                case 8:
                    model = _UNRECORDED
                case 11:
                    prompt, leave_s = _SILENT, 0.2
                case 14:
                    headers = {"Authorization": "Bearer expired"}
                case 17:
                    url = f"{origin}/v2/chat/completions"
                case 19:
                    prompt = _SILENT if dice.random() < 0.1 else prompt
            asked = {
                "model": model,
                "messages": [{"role": "user", "content": prompt}],
                "stream": dice.random() < 0.7,
            }
            with contextlib.suppress(TimeoutError):
                async with session.post(
                    url, json=asked, headers=headers, timeout=aiohttp.ClientTimeout(total=leave_s)
                ) as response:
                    await response.read()


@asynccontextmanager
async def _prometheus(folder: Path, target: str) -> AsyncIterator[Watched]:
    shipped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text("utf-8"))
    shipped["global"] = dict.fromkeys(shipped["global"], f"{SCRAPE_S}s")
    shipped["rule_files"] = [str(DEPLOY / "prometheus" / name) for name in shipped["rule_files"]]
    (scraped,) = shipped["scrape_configs"]
    del scraped["dns_sd_configs"]
    scraped["static_configs"] = [{"targets": [target]}]
    (folder / "prometheus.yml").write_text(json.dumps(shipped), "utf-8")
    running = await asyncio.create_subprocess_exec(
        "prometheus",
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/tsdb",
        "--web.listen-address=127.0.0.1:0",
        stderr=asyncio.subprocess.PIPE,
    )
    assert running.stderr is not None
    address = ""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while "Server is ready" not in (line := (await running.stderr.readline()).decode()):
                assert line, "Prometheus ended"
                if listening := _LISTENING.search(line):
                    address = listening[1]
        reading = asyncio.create_task(running.stderr.read())  # so that it never waits for a reader
        yield Watched(f"http://{address}")
        reading.cancel()
    finally:
        running.terminate()
        await running.wait()
