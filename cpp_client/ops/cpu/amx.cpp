#include "ops/cpu/amx.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

namespace recsys::ops {
namespace {

#if defined(__x86_64__)
// Intel's manual, CPUID leaf 7, EDX: AMX-BF16, AMX-TILE, AMX-INT8.
constexpr unsigned kAmxFeatures = 1U << 22 | 1U << 24 | 1U << 25;
// Leaf 1, ECX: XGETBV may be called.
constexpr unsigned kXgetbv = 1U << 27;
// Leaf 0x1d, palette 1: tiles of 1024 bytes, rows of 64 bytes in 8 tiles, 16 rows.
constexpr unsigned kTileBytes = 1024, kRowBytes = 64, kNumTiles = 8, kNumRows = 16;
// XCR0: the system saves configuration and contents of tiles.
constexpr unsigned kTileStates = 1U << 17 | 1U << 18;

bool ProcessorHasAmx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kAmxFeatures) != kAmxFeatures) {
    return false;
  }
  return __get_cpuid_count(0x1d, 1, &a, &b, &c, &d) != 0 && a >> 16 == kTileBytes &&
         (b & 0xffffU) == kRowBytes && b >> 16 >= kNumTiles && (c & 0xffffU) >= kNumRows;
}

bool SystemSavesTiles() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kXgetbv) == 0) return false;
  __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
  return (a & kTileStates) == kTileStates;
}

bool SystemGrantsTiles() {
#if defined(__linux__)
  // asm/prctl.h and Documentation/arch/x86/xstate.rst of Linux: ARCH_REQ_XCOMP_PERM of tile data.
  constexpr int kRequest = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
#else
  return false;
#endif
}
#endif

struct Free {
  void operator()(char* data) const { std::free(data); }
};

/// Small whole numbers.
std::vector<float> Whole(std::int64_t count, int step) {
  std::vector<float> values(static_cast<std::size_t>(count));
  int at = 0;
  for (float& value : values) value = static_cast<float>((at = (at + step) % 13) - 6);
  return values;
}

bool LayersAgree(WeightType type, std::int64_t num_outputs, std::int64_t num_inputs,
                 const Kernels& some, const Kernels& others) {
  constexpr std::int64_t kAlign = 64;
  const std::vector<float> weight = Whole(num_outputs * num_inputs, 5);
  const std::vector<char> data = Pack(weight.data(), nullptr, num_outputs, num_inputs, type);
  const std::size_t size = (data.size() + kAlign - 1) / kAlign * kAlign;
  const std::unique_ptr<char, Free> bytes(static_cast<char*>(std::aligned_alloc(kAlign, size)));
  if (bytes == nullptr) throw std::bad_alloc();
  std::memcpy(bytes.get(), data.data(), data.size());
  Packed packed;
  if (!ReadPacked(bytes.get(), static_cast<std::int64_t>(data.size()), &packed).empty()) {
    return false;
  }
  for (const std::int64_t num_rows : {1, 9, 16, 33}) {
    const std::vector<float> in = Whole(num_rows * num_inputs, 3);
    const auto outputs = [&](const Kernels& kernels) {
      std::vector<float> out(static_cast<std::size_t>(num_rows * num_outputs));
      kernels.linear(packed, {in.data(), num_inputs}, num_rows, Activation::kNone,
                     {out.data(), num_outputs}, nullptr);
      return out;
    };
    if (outputs(some) != outputs(others)) return false;
  }
  return true;
}

}  // namespace

Amx AmxOfThis() {
#if defined(__x86_64__)
  static const Amx kOfThis = !ProcessorHasAmx()                          ? Amx::kMissing
                             : SystemSavesTiles() && SystemGrantsTiles() ? Amx::kUsable
                                                                         : Amx::kDenied;
  return kOfThis;
#else
  return Amx::kMissing;
#endif
}

bool LinearLayersAgree(const Kernels& some, const Kernels& others) {
  for (const WeightType type : {WeightType::kBfloat16, WeightType::kInt8}) {
    for (const std::int64_t num_inputs : {3, 64, 130}) {
      for (const std::int64_t num_outputs : {16, 72}) {
        if (!LayersAgree(type, num_outputs, num_inputs, some, others)) return false;
      }
    }
  }
  return true;
}

bool AmxIsRight() {
#if defined(__x86_64__)
  static const bool kIsRight = LinearLayersAgree(AmxKernels(), EmulatedAmxKernels());
  return kIsRight;
#else
  return false;
#endif
}

}  // namespace recsys::ops
