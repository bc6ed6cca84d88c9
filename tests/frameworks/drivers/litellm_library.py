"""litellm's library, Chat Completions, streamed."""

import litellm

stream = litellm.completion(
    model="openai/deepseek/deepseek-v3.2",
    api_base="http://127.0.0.1:8080/v1",
    api_key="sk-or-v1-...",
    messages=[{"role": "user", "content": "Write the file."}],
    stream=True,
)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="", flush=True)
