#!/usr/bin/env bash
# What a newcomer does, as the README says it: a fresh clone, an empty environment, `make up`, the two programs that it
# prints run as printed, streams left at random, another maker's client, Ctrl-C; then the same model run by the Node
# (`iop up --native`). Fails when a step fails or a process is left. MODEL=echo needs no download of weights; CLIENTS=1 also runs the npm client (needs node and npm).
set -euo pipefail
cd "$(dirname "$0")/.."
here=$PWD
model=${MODEL:-smollm2}
folder=$(mktemp -d)
log=$folder/up.log
pid=

finish() {
    if [ -n "$pid" ]; then
        kill -INT -- "-$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    fi
    rm -rf "$folder"
}
trap finish EXIT

fail() {
    cut -c1-300 "$log" >&2
    echo "first run: $1" >&2
    exit 1
}

git clone --quiet "$here" "$folder/clone"
cd "$folder/clone"
ports=$(python3 -c '
import socket
held = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
print(*(one.getsockname()[1] for one in held))')
read -r port link_port admin_port <<<"$ports"

# Of the environment only what a package index may need is kept, and the compiler that CI names. A session of its own stands for the terminal: the
# interrupt below reaches make and all that it started.
kept=()
for name in PIP_CERT PIP_INDEX_URL PIP_FIND_LINKS PIP_DEFAULT_TIMEOUT https_proxy CC; do
    if [ -n "${!name:-}" ]; then kept+=("$name=${!name}"); fi
done

# Run a command that ends only by Ctrl-C, until it says that it is ready.
begin() {
    env -i HOME="$HOME" PATH="$PATH" LANG=C.UTF-8 "${kept[@]}" setsid "$@" >"$log" 2>&1 &
    pid=$!
    for _ in $(seq 800); do
        if grep -q '^ready: ' "$log"; then break; fi
        kill -0 "$pid" 2>/dev/null || fail "$1 ended by itself"
        sleep 0.5
    done
    grep -q "^ready: model $model " "$log" || fail "$1 was not ready with the model $model in time"
}

# Ctrl-C, and nothing is left.
end() {
    kill -INT -- "-$pid"
    code=0
    wait "$pid" || code=$?
    pid=
    if pgrep -f "$folder/clone" >/dev/null; then pgrep -af "$folder/clone" >&2; fail "a process is left"; fi
}

run_curl() {
    sed -n '/^  curl /,/^$/p' "$log" | sed 's/^  //' >"$folder/curl.sh"
    bash "$folder/curl.sh" >"$folder/curl.out" || fail "the printed curl line failed"
    grep -q '^data: \[DONE\]' "$folder/curl.out" || fail "the printed curl line got no whole stream"
}

up_ports="--port $port --link-port $link_port --admin-port $admin_port"
begin make up MODEL="$model" UP_FLAGS="$up_ports"

# The two programs as printed: the block that begins with curl, and the one from the SDK's installation to its end mark.
run_curl
sed -n '/^  .* -m pip install --quiet openai$/,/^  PY/p' "$log" | sed 's/^  //' >"$folder/sdk.sh"
bash "$folder/sdk.sh" >"$folder/sdk.out" 2>>"$log" || fail "the printed SDK program failed"
[ -s "$folder/sdk.out" ] || fail "the printed SDK program got an empty answer"
echo "first run: curl and SDK answered; the SDK printed: $(head -c 200 "$folder/sdk.out")"

"$here/.venv/bin/python" "$here/scripts/abort_streams.py" --port "$port" --admin "127.0.0.1:$admin_port" --model "$model" \
    || fail "aborted streams left something"
if [ "${CLIENTS:-0}" = 1 ]; then
    "$here/scripts/npm-client-check.sh" "$port" "$model" || fail "the npm client failed"
fi
.venv/bin/iop status --admin "127.0.0.1:$admin_port"

end
echo "first run: make up served $model and stopped (make's exit code $code)"

if [ "$model" = smollm2 ]; then
    # shellcheck disable=SC2086 - the flags are words
    begin .venv/bin/iop up --native $up_ports
    run_curl
    .venv/bin/iop status --admin "127.0.0.1:$admin_port" | grep -q "local-smollm2 .* native " || fail "it is not native"
    end
    echo "first run: iop up --native served $model from the Node and stopped (exit code $code)"
fi
