#!/usr/bin/env bash
# Put Debian's promtool alone into a folder: the package brings a server and its pages, 100 MB that nothing here needs.
# Usage: scripts/get-promtool.sh FOLDER
set -euo pipefail
folder=$(realpath -m "${1:?a folder expected}")
if [ -x "$folder/promtool" ] || command -v promtool >/dev/null; then exit 0; fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
cd "$work"
apt-get download -qq prometheus 2>/dev/null || { apt-get update -qq && apt-get download -qq prometheus; }
dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/promtool
mkdir -p "$folder"
mv usr/bin/promtool "$folder/promtool"
