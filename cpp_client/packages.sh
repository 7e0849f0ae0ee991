#!/usr/bin/env bash
# Install the Debian packages that the C++ side is built with, or say which are missing.
#   packages.sh           for `make native`
#   packages.sh --tests   for the tests, sanitizers, fuzzers and style checks as well
# PYTHON: the interpreter that the modules are built for (default python3.11).
set -euo pipefail

packages=(g++ cmake ninja-build pkg-config ccache libgrpc++-dev libnghttp2-dev libssl-dev zlib1g-dev
  nlohmann-json3-dev libhiredis-dev)
if [[ "${1:-}" == --tests ]]; then
  packages+=(libprotobuf-dev protobuf-compiler protobuf-compiler-grpc libgtest-dev
    clang-14 libclang-rt-14-dev clang-format-14 clang-tidy-14 g++-aarch64-linux-gnu qemu-user redis-server)
fi
# Debian's Python has its headers in a package of their own; others bring them along.
include=$("${PYTHON:-python3.11}" -c 'import sysconfig; print(sysconfig.get_path("include"))')
if [[ ! -f "$include/Python.h" && "$include" == /usr/include/* ]]; then
  packages+=("lib$(basename "$include")-dev")
fi

# shellcheck source=/dev/null
system=$(. /etc/os-release 2>/dev/null && echo "${PRETTY_NAME:-}") || true
if ! command -v dpkg-query >/dev/null; then
  echo "make native is built and tested on Debian 12; this is ${system:-another system}. It installs nothing here." >&2
  echo "It needs what Debian calls: ${packages[*]}" >&2
  for tool in c++ cmake ninja pkg-config; do
    command -v "$tool" >/dev/null || { echo "missing: $tool" >&2; exit 2; }
  done
  exit 0
fi

missing=()
for package in "${packages[@]}"; do
  if [[ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" != installed ]]; then
    missing+=("$package")
  fi
done
if [[ "$system" != "Debian GNU/Linux 12"* ]]; then
  echo "make native is built and tested on Debian 12; on ${system:-this system} it is not tested. It needs gRPC 1.51 or" \
    "newer, a compiler of C++17 and CMake 3.25." >&2
fi
[[ ${#missing[@]} -eq 0 ]] && exit 0

if [[ $(id -u) -ne 0 ]]; then
  echo "These packages are missing. Install them, then run make again:" >&2
  echo "  sudo apt-get install --no-install-recommends ${missing[*]}" >&2
  exit 2
fi
echo "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
if ! log=$(apt-get install -y -qq --no-install-recommends "${missing[@]}" 2>&1); then
  echo "$log" >&2
  echo "apt-get could not install ${missing[*]}; on ${system:-this system} they may have other names or versions." >&2
  exit 2
fi
