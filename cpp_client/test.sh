#!/usr/bin/env bash
# Prove the C++ side: style, tests, sanitizers, fuzzers. `make native-test` calls it.
#   test.sh BUILD [part ...]   BUILD: the folder of `make native`
# Parts: build and apart compile what the next ones run, apart what needs no torch; style, unit, address, arm (emulated),
# fuzz; thread compiles for itself.
# FUZZ_SECONDS: of each fuzz target (default 5).
set -euo pipefail
cd "$(dirname "$0")"

build=$1
shift
parts=("$@")
[[ ${#parts[@]} -gt 0 ]] || parts=(build apart style unit address arm fuzz thread)
# Rooms that need gRPC, torch or generated messages; all others are tested with sanitizers alone.
programs=(test_client test_bench test_port test_protocols test_engine test_ops_torch recsys-predict-tool recsys-client-tool compiled)
# fuzzer-no-link makes a fuzzer see what its inputs reach.
fuzzed=address,undefined,fuzzer-no-link
launcher=()
command -v ccache >/dev/null && launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)

# configure FOLDER SANITIZERS [more]: the rooms without torch and gRPC, with clang.
configure() {
  cmake -G Ninja -S . -B "$1" "${launcher[@]}" -DCMAKE_CXX_COMPILER=clang++-14 -DCMAKE_BUILD_TYPE=Debug \
    -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=12 -DCMAKE_CXX_FLAGS_DEBUG="-O1 -g1" \
    -DRECSYS_MODEL=OFF -DRECSYS_RPC=OFF -DRECSYS_SANITIZE="$2" "${@:3}" >/dev/null
}

# The kernels alone, for 64-bit ARM.
configure_arm() {
  cmake -G Ninja -S . -B "$build-arm" "${launcher[@]}" -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
    -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DRECSYS_ONLY_KERNELS=ON >/dev/null
}

# no_weak_code OBJECT...: weak code, such as a template's, may be chosen for callers on processors without these
# instructions.
no_weak_code() {
  if nm -C "$@" | grep ' [VWu] '; then
    echo "kernels for special instructions must leave no code that others could call" >&2
    return 1
  fi
}

build() {
  cmake --build "$build" --target "${programs[@]}"
  no_weak_code "$build"/CMakeFiles/recsys_ops.dir/ops/kernels/x86/*.cpp.o
}

apart() {
  configure_arm
  cmake --build "$build-arm"
  no_weak_code "$build"-arm/CMakeFiles/recsys_ops.dir/ops/kernels/arm/{dotprod,i8mm}.cpp.o
  configure "$build-address" "$fuzzed" -DRECSYS_FUZZERS=ON
  cmake --build "$build-address"
}

style() {
  find . \( -name '*.h' -o -name '*.cpp' \) -print0 | xargs -0 clang-format-14 --dry-run -Werror
  # The rooms that every request passes, and those that read untrusted bytes.
  find base wire ops port rest engine/core engine/counters engine/routes engine/settings -name '*.cpp' \
    ! -path 'ops/kernels/x86/*' ! -path 'ops/kernels/arm/*' ! -path 'ops/torch/*' -print0 |
    xargs -0 -P "$(nproc)" -I{} clang-tidy-14 --quiet {} -- -std=c++17 -I. -Iinclude 2>/dev/null
}

unit() {
  ctest --test-dir "$build" --output-on-failure --timeout 300 -R '^(client|bench|port|protocols|engine|ops_torch)(_[0-9]_threads)?$'
}

address() {
  ctest --test-dir "$build-address" --output-on-failure --timeout 300
}

# All sets of instructions of 64-bit ARM, and the choice among them, by an emulator.
arm() {
  local processor
  export QEMU_LD_PREFIX=/usr/aarch64-linux-gnu
  for processor in cortex-a72:neon neoverse-n1:dotprod max:i8mm; do
    RECSYS_TEST_BEST_ISA=${processor#*:} qemu-aarch64 -cpu "${processor%:*}" "$build-arm/test_ops" \
      --gtest_brief=1 --gtest_filter='Isa.*'
  done
  qemu-aarch64 -cpu max "$build-arm/test_ops" --gtest_brief=1
}

thread() {
  local rooms=(core counters port routes settings)
  configure "$build-thread" thread
  cmake --build "$build-thread" --target "${rooms[@]/#/test_}" test_ops
  TSAN_OPTIONS="suppressions=$PWD/tests/tsan.supp halt_on_error=1" \
    ctest --test-dir "$build-thread" --output-on-failure --timeout 300 -R "^($(IFS='|' && echo "${rooms[*]}"))(_[0-9]_threads)?\$"
  # The kernels have no state.
  TSAN_OPTIONS="halt_on_error=1" "$build-thread/test_ops" --gtest_brief=1 --gtest_filter='ContextCache.*'
}

# Run each target for FUZZ_SECONDS on its seeds and on what it found before; print how many inputs it ran.
fuzz() {
  local target name corpus
  for target in "$build-address"/fuzz_*; do
    [[ -x "$target" && ! -d "$target" ]] || continue
    name=$(basename "$target")
    corpus="$build-address/corpus/$name"
    mkdir -p "$corpus"
    "$target" -max_total_time="${FUZZ_SECONDS:-5}" -max_len=65536 -print_final_stats=1 "$corpus" \
      $([[ -d "fuzz/seeds/${name#fuzz_}" ]] && echo "fuzz/seeds/${name#fuzz_}") >"$build-address/$name.log" 2>&1 ||
      { tail -40 "$build-address/$name.log" >&2; return 1; }
    echo "$name: $(sed -n 's/^stat::number_of_executed_units: *//p' "$build-address/$name.log") inputs"
  done
}

for part in "${parts[@]}"; do
  SECONDS=0
  "$part"
  echo "native $part: passed, $SECONDS s"
done
