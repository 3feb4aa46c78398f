#!/usr/bin/env bash
# Builds everything and runs the tests.
# usage: tests/run.sh [--preset dev|release|asan] [--build-only] [-- CTEST ARGUMENTS]
#   --build-only  stop after building and installing into build/install
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

preset=dev
build_only=false
while [ $# -gt 0 ]; do
  case "$1" in
    --preset) preset=${2:?--preset wants a name}; shift 2 ;;
    --build-only) build_only=true; shift ;;
    --) shift; break ;;
    -h|--help) sed -n '2,4s/^# //p' "$0"; exit 0 ;;
    *) echo "error: unknown option $1" >&2; sed -n '2,4s/^# //p' "$0" >&2; exit 2 ;;
  esac
done

cmake/install_packages.sh
cmake --preset "$preset" >/dev/null
cmake --build --preset "$preset"
cmake --install "build/$preset" >/dev/null
$build_only && exit 0
ctest --preset "$preset" "$@"
