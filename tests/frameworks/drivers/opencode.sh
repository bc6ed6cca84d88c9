# OpenCode, one `opencode run`; its title is given, as it asks the model for one otherwise.
set -eu

mkdir -p ~/.config/opencode
cat > ~/.config/opencode/opencode.json <<'JSON'
{
  "$schema": "https://opencode.ai/config.json",
  "provider": {
    "loopguard": {
      "npm": "@ai-sdk/openai-compatible",
      "name": "loopguard",
      "options": { "baseURL": "http://127.0.0.1:8080/v1", "apiKey": "sk-or-v1-..." },
      "models": { "deepseek/deepseek-v3.2": { "name": "DeepSeek" } }
    }
  }
}
JSON

exec opencode run --model loopguard/deepseek/deepseek-v3.2 --title Survey "Write the file."
