#!/usr/bin/env bash
# What a newcomer does, as the README says it: a fresh clone, an empty environment, `make up`, one chat, Ctrl-C.
# Fails when any step fails or a process is left.
set -euo pipefail
cd "$(dirname "$0")/.."
here=$PWD
folder=$(mktemp -d)
log=$folder/up.log
pid=

finish() {
    if [ -n "$pid" ]; then kill -INT -- "-$pid" 2>/dev/null || true; fi
    rm -rf "$folder"
}
trap finish EXIT

git clone --quiet "$here" "$folder/clone"
cd "$folder/clone"
ports=$(python3 -c '
import socket
held = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
print(*(one.getsockname()[1] for one in held))')
read -r port link_port admin_port <<<"$ports"

# A session of its own stands for the terminal: the interrupt below reaches make and all that it started.
env -i HOME="$folder" PATH="$PATH" LANG=C.UTF-8 ${PIP_CERT:+PIP_CERT="$PIP_CERT"} \
    setsid make up MODEL=echo UP_FLAGS="--port $port --link-port $link_port --admin-port $admin_port" >"$log" 2>&1 &
pid=$!

for _ in $(seq 600); do
    if grep -q '^ready: ' "$log"; then break; fi
    if ! kill -0 "$pid" 2>/dev/null; then cat "$log"; echo "make up ended by itself" >&2; exit 1; fi
    sleep 0.5
done
grep -q '^ready: ' "$log" || { cat "$log"; echo "make up was not ready in time" >&2; exit 1; }

answer=$(curl -sS "http://127.0.0.1:$port/v1/chat/completions" -H 'content-type: application/json' \
    -d '{"model": "echo", "messages": [{"role": "user", "content": "first light"}]}')
echo "$answer" | grep -q 'first light' || { echo "unexpected answer: $answer" >&2; exit 1; }
.venv/bin/iop status --admin "127.0.0.1:$admin_port"

# Ctrl-C in a terminal reaches the whole foreground group.
kill -INT -- "-$pid"
code=0
wait "$pid" || code=$?
pid=
if pgrep -f "$folder/clone" >/dev/null; then pgrep -af "$folder/clone"; echo "a process is left" >&2; exit 1; fi
echo "first run: make up answered a chat and stopped (make exit code $code)"
