#!/usr/bin/env bash
# Builds Tandem, then brings up a tiny trained model on this machine: two CPU ranks, no GPU, nothing fetched from outside.
# usage: examples/quickstart.sh [--stop]
#   --stop  takes the model down again
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tandem=build/install/bin/tandem
recipe=recipes/ling-tiny-3.64bpw.yaml

case "${1:-}" in
  "") ;;
  --stop)
    [ -x "$tandem" ] || { echo "Nothing to stop: $tandem is not built."; exit 0; }
    exec "$tandem" down "$recipe" ;;
  *) sed -n '3,4s/^# //p' "$0" >&2; exit 2 ;;
esac

cmake/install_packages.sh
if [ ! -f build/dev/build.ninja ]; then cmake --preset dev >/dev/null; fi
cmake --build --preset dev --target tandem tandem-runtime
cmake --install build/dev >/dev/null

# The recipe's pack lies in examples/packs; a mirror serves it as a hub would, only while `up` runs.
work=$(mktemp -d)
mirror=
trap '[ -z "$mirror" ] || kill "$mirror" 2>/dev/null || true; rm -rf "$work"' EXIT
"$tandem" mirror examples/packs --port 0 --log "$work/mirror.log" >"$work/mirror.json" &
mirror=$!
for _ in $(seq 100); do
  [ -s "$work/mirror.json" ] && break
  kill -0 "$mirror" 2>/dev/null || { echo "error: the mirror of examples/packs did not start" >&2; exit 3; }
  sleep 0.1
done
endpoint=$(sed -n 's/.*"endpoint": *"\([^"]*\)".*/\1/p' "$work/mirror.json")

HF_ENDPOINT="$endpoint" "$tandem" up "$recipe"
echo "Take it down again with: ./examples/quickstart.sh --stop"
