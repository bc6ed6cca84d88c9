"""OpenAI Agents SDK, a streamed run on the wire that is named."""

import asyncio
import sys

from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner
from openai import AsyncOpenAI

client = AsyncOpenAI(base_url="http://127.0.0.1:8080/v1", api_key="sk-or-v1-...")
if sys.argv[1] == "chat":
    model = OpenAIChatCompletionsModel("deepseek/deepseek-v3.2", openai_client=client)
else:
    model = OpenAIResponsesModel("deepseek/deepseek-v3.2", openai_client=client)
agent = Agent(name="Writer", model=model)


async def main() -> None:
    """Run the agent and print its answer."""
    run = Runner.run_streamed(agent, "Write the file.")
    async for _ in run.stream_events():
        pass
    print(run.final_output)


asyncio.run(main())
