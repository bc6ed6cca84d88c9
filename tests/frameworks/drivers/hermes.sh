# Hermes Agent, one query on the wire that is named.
set -eu

mkdir -p ~/.hermes
case $1 in
  chat) cat > ~/.hermes/config.yaml <<'YAML' ;;
model:
  provider: custom
  base_url: http://127.0.0.1:8080/v1
  api_key: sk-or-v1-...
  default: deepseek/deepseek-v3.2
YAML
  responses) cat > ~/.hermes/config.yaml <<'YAML' ;;
model:
  provider: loopguard
  default: deepseek/deepseek-v3.2
providers:
  loopguard:
    base_url: http://127.0.0.1:8080/v1
    api_key: sk-or-v1-...
    transport: codex_responses
YAML
esac

exec hermes chat --quiet --verbose --query "Write the file."
