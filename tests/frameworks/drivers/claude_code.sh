# Claude Code, one `claude -p`; it speaks Anthropic Messages only, and its base URL ends before /v1.
set -eu

export ANTHROPIC_BASE_URL=http://127.0.0.1:8080
export ANTHROPIC_AUTH_TOKEN=sk-or-v1-...
export ANTHROPIC_MODEL=deepseek/deepseek-v3.2
export ANTHROPIC_DEFAULT_HAIKU_MODEL=deepseek/deepseek-v3.2

exec claude -p "Write the file."
