"""pydantic-ai, a streamed run on the wire that is named."""

import asyncio
import sys

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(base_url="http://127.0.0.1:8080/v1", api_key="sk-or-v1-...")
if sys.argv[1] == "chat":
    model = OpenAIChatModel("deepseek/deepseek-v3.2", provider=provider)
else:
    model = OpenAIResponsesModel("deepseek/deepseek-v3.2", provider=provider)


async def main() -> None:
    """Run the agent and print its answer as it comes."""
    async with Agent(model).run_stream("Write the file.") as run:
        async for text in run.stream_text(delta=True):
            print(text, end="", flush=True)


asyncio.run(main())
