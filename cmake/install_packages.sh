#!/usr/bin/env bash
# Installs the Debian/Ubuntu packages that building and testing need, if any is missing. Says what it does.
# usage: install_packages.sh
set -euo pipefail

packages=(
  g++ cmake ninja-build ccache pkg-config                    # build
  libspdlog-dev nlohmann-json3-dev libssl-dev libcli11-dev   # both programs
  libcpp-httplib-dev
  libyaml-cpp-dev libboost-dev libboost-filesystem-dev       # tandem
  libhwy-dev libgloo-dev libpcre2-dev                        # tandem-runtime
  catch2 python3 python3-jinja2 curl                         # tests and the example
)

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "error: these packages are missing and neither root nor sudo is at hand: ${missing[*]}" >&2
    echo "fix:   as root: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "Installing Debian packages: ${missing[*]}"
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
