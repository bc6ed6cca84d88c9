# Aider, one message.
set -eu

export OPENAI_API_BASE=http://127.0.0.1:8080/v1
export OPENAI_API_KEY=sk-or-v1-...

exec aider --model openai/deepseek/deepseek-v3.2 --no-show-model-warnings \
  --no-git --yes-always --no-pretty --message "Write the file."
