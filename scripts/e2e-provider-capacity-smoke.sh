#!/usr/bin/env bash
# Shows that one provider has one capacity whatever model alias it is called by: real Edge and Node processes, a provider
# of capacity 1 behind two aliases, all on free loopback ports. Prints what it checked, leaves no process, exits 0 or 1.
set -euo pipefail
cd "$(dirname "$0")/.."
make --no-print-directory .venv/.run
exec .venv/bin/python scripts/provider_capacity_smoke.py "$@"
