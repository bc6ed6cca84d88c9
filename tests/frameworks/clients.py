"""The clients of the survey: what each is made of, what it speaks, and where it is installed.

An environment is a folder of the cache, one for each client, so that no client's packages can bend
those of another. It is there once its stamp says what the table says.
"""

import json
import os
from pathlib import Path
from typing import NamedTuple

from loopguard.runaway import ANSWER

CACHE = Path(
    os.environ.get("LOOPGUARD_FRAMEWORKS") or Path.home() / ".cache" / "loopguard-frameworks"
)


class Client(NamedTuple):
    """One row of the table.

    Attributes:
        name: as the command and the survey call it; its driver is named so too.
        driver: file in `drivers/`; its ending says what runs it.
        wires: what it is asked to speak, one run for each.
        packages: from the index of its language, pinned; the first is the client itself.
        answer: what the model writes where it does not loop.
        asks: requests that it makes for a prompt whose every reply loops. More than one where it
            asks again whatever it is told.
    """

    name: str
    driver: str
    wires: tuple[str, ...]
    packages: tuple[str, ...]
    answer: str = ANSWER
    asks: int = 1

    @property
    def is_node(self) -> bool:
        """Whether its packages are npm's; else they are pip's."""
        return "@" in self.packages[0]

    @property
    def version(self) -> str:
        """The pinned one."""
        return self.packages[0].replace("==", "@").rpartition("@")[2]

    @property
    def home(self) -> Path:
        """The folder of its environment."""
        return CACHE / self.name

    @property
    def commands(self) -> Path:
        """Where its environment keeps what can be run."""
        return self.home / ("node_modules/.bin" if self.is_node else "bin")

    @property
    def stamp(self) -> Path:
        """The file that is written once all packages are there."""
        return self.home / "installed.json"

    @property
    def is_installed(self) -> bool:
        """Whether its environment holds what the table says."""
        return self.stamp.is_file() and json.loads(self.stamp.read_text()) == list(self.packages)

    @property
    def runner(self) -> str:
        """What runs its driver."""
        suffix = Path(self.driver).suffix
        return {".py": str(self.commands / "python"), ".mjs": "node", ".sh": "sh"}[suffix]


CLIENTS = (
    Client("openai", "openai_python.py", ("chat",), ("openai==3.57.0",)),
    Client("openai-js", "openai_js.mjs", ("chat",), ("openai@7.59.0",)),
    Client("openai-agents", "openai_agents.py", ("chat", "responses"), ("openai-agents==0.24.0",)),
    Client(
        "smolagents",
        "smol_agents.py",
        ("chat",),
        ("smolagents[openai]==1.26.0",),
        answer=f"<code>\nfinal_answer({ANSWER!r})\n</code>",  # a code agent answers in code
    ),
    Client(
        "langgraph",
        "lang_graph.py",
        ("chat", "responses"),
        ("langgraph==1.2.24", "langchain-openai==1.7.4"),
    ),
    Client("codex", "codex.sh", ("responses",), ("@openai/codex@0.163.0",)),
    Client("hermes", "hermes.sh", ("chat", "responses"), ("hermes-agent==0.19.0",), asks=3),
    Client(
        "pydantic-ai",
        "pydantic_agent.py",
        ("chat", "responses"),
        ("pydantic-ai-slim[openai]==2.68.0",),
    ),
    Client(
        "vercel-ai",
        "vercel_ai.mjs",
        ("chat", "responses"),
        ("ai@7.0.173", "@ai-sdk/openai@4.0.118"),
    ),
    # Never 1.82.7 or 1.82.8, which were published to steal credentials, nor 1.107.0.
    Client("litellm", "litellm_library.py", ("chat",), ("litellm==1.110.2",)),
    Client(
        "claude-code",
        "claude_code.sh",
        ("messages",),
        ("@anthropic-ai/claude-code@2.1.332",),
        asks=2,
    ),
    Client("aider", "aider.sh", ("chat",), ("aider-chat==0.86.2",), asks=9),
    Client("opencode", "opencode.sh", ("chat",), ("opencode-ai@1.18.33",)),
)
