#!/usr/bin/env bash
# Build the wheel into dist/ from the modules that `make native` has built; `make wheel` calls it.
#   BIN: the environment's folder of programs. RECSYS_WHEEL: platform or pure.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$BIN:$PATH

# Files that are gone from the sources would be packed again.
rm -rf build/lib build/lib.* build/bdist.* build/wheel
pip wheel -q --no-deps --no-build-isolation --no-index -w build/wheel .
wheel=$(echo build/wheel/*.whl)
mkdir -p dist
if [[ "$RECSYS_WHEEL" == pure ]]; then
  [[ "$wheel" == *-py3-none-any.whl ]]
  mv "$wheel" dist/
  echo "dist/$(basename "$wheel")"
  exit
fi
# The tag then names the glibc that the modules need. torch is loaded before them, FBGEMM by them from its package.
auditwheel repair --strip --exclude 'libtorch*.so' --exclude libc10.so -w dist "$wheel" 2>build/wheel/auditwheel.log ||
  { cat build/wheel/auditwheel.log >&2; exit 1; }
ls -t dist/*.whl | head -1
