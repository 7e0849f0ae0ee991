#!/usr/bin/env bash
# Configure and build the C++ side for one Python and the torch in it.
#   build.sh FOLDER TARGET...
#   PYTHON: the interpreter (default .venv/bin/python). NATIVE_JOBS: compilers at a time (default: all processors).
# The targets are those of CMakeLists.txt, such as native and peers. Needs the packages of packages.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1
shift

# Also what another clone has compiled is used again.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros
options=(-DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=12)
command -v ccache >/dev/null && options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
wheels=$("${PYTHON:-.venv/bin/python}" cpp_client/wheels.py)
mapfile -t wheels <<<"$wheels"

mkdir -p "$folder"
if ! cmake -G Ninja -S cpp_client -B "$folder" "${options[@]}" "${wheels[@]}" >"$folder/configure.log" 2>&1; then
  cat "$folder/configure.log" >&2
  exit 1
fi
cmake --build "$folder" -j "${NATIVE_JOBS:-$(nproc)}" --target "$@"
