# Codex CLI, one `codex exec`; it speaks the Responses API only.
set -eu

mkdir -p ~/.codex
cat > ~/.codex/config.toml <<'TOML'
model = "deepseek/deepseek-v3.2"
model_provider = "loopguard"

[model_providers.loopguard]
name = "loopguard"
base_url = "http://127.0.0.1:8080/v1"
env_key = "OPENROUTER_API_KEY"
wire_api = "responses"
TOML

export OPENROUTER_API_KEY=sk-or-v1-...
exec codex exec --skip-git-repo-check \
  -c check_for_update_on_startup=false -c analytics.enabled=false "Write the file."
