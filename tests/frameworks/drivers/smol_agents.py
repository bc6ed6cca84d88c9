"""smolagents, a code agent that streams."""

from smolagents import CodeAgent, OpenAIModel

model = OpenAIModel(
    model_id="deepseek/deepseek-v3.2",
    api_base="http://127.0.0.1:8080/v1",
    api_key="sk-or-v1-...",
)
agent = CodeAgent(tools=[], model=model, stream_outputs=True, max_steps=1, verbosity_level=0)
print(agent.run("Write the file."))
