#!/usr/bin/env bash
# Holds a running agent against its own description of its API: requests are made up from
# /openapi.json, good and bad ones, and every answer must be one that the description allows.
set -euo pipefail
cheops=${1:?the program}
schemathesis=${2:?schemathesis}

directory=$(mktemp -d)
port=$((20000 + RANDOM % 20000))
# What is made up must not be run: the shell of this site does nothing.
cat >"$directory/site.toml" <<TOML
site = "site1"
[listen]
api = "127.0.0.1:$port"
peers = "127.0.0.1:0"
[runs]
shell = "/bin/true"
TOML
"$cheops" agent --config "$directory/site.toml" 2>"$directory/log" &
agent=$!
trap 'kill $agent 2>/dev/null || true; wait $agent 2>/dev/null || true; rm -rf "$directory"' EXIT
for _ in $(seq 200); do
  curl -sf "http://127.0.0.1:$port/readyz" >/dev/null && break
  sleep 0.05
done

# Something to find.
curl -sf -H 'Content-Type: application/json' -d '{"command": "true", "sites": "site1"}' \
  "http://127.0.0.1:$port/api/v1/resources/x/operations" >/dev/null

# The change feed never ends by itself.
cd "$directory"  # it leaves a cache where it runs
"$schemathesis" run "http://127.0.0.1:$port/openapi.json" \
  --checks not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance \
  --exclude-path /api/v1/changes --max-examples "${EXAMPLES:-30}" --workers 1 --request-timeout 40 \
  --seed 1 --no-color --phases examples,coverage,fuzzing \
  || { tail -20 "$directory/log"; exit 1; }
