#!/usr/bin/env bash
# The Debian packages that the native side is built with: installs what is missing, or says how.
#   packages.sh           what is built and shipped
#   packages.sh --tests   what its tests, sanitizers, fuzzers and lint need besides
set -euo pipefail

packages=(g++ cmake ninja-build pkg-config ccache
  libgrpc++-dev libgrpc-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc
  libssl-dev nlohmann-json3-dev zlib1g-dev libcpptoml-dev)
if [[ "${1:-}" == --tests ]]; then
  packages+=(libgtest-dev clang-14 libclang-rt-14-dev clang-format-14 clang-tidy-14)
fi

missing=()
for package in "${packages[@]}"; do
  if [[ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" != installed ]]; then
    missing+=("$package")
  fi
done
[[ ${#missing[@]} -eq 0 ]] && exit 0

if ! command -v apt-get >/dev/null; then
  echo "The native side needs these Debian 12 packages, or what they are called here: ${missing[*]}" >&2
  exit 2
fi
if [[ $(id -u) -ne 0 ]]; then
  echo "The native side needs packages that are not installed. Install them, then run make again:" >&2
  echo "  sudo apt-get install --no-install-recommends ${missing[*]}" >&2
  exit 2
fi
echo "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
