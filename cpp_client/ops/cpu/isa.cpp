#include "ops/cpu/isa.h"

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "ops/cpu/amx.h"

namespace recsys::ops {
namespace {

constexpr char kVariable[] = "RECSYS_ISA";
constexpr int kUnknown = -1;
constexpr char kDeniedText[] =
    "the system does not let this process use tiles (Linux 5.16 or later may, where all signal "
    "stacks have room for them)";
constexpr char kWrongText[] = "this processor's tiles compute other numbers than they should";

/// The chosen one, or kUnknown.
std::atomic<int>& Chosen() {
  static std::atomic<int> chosen{kUnknown};
  return chosen;
}

/// Returns the names of those that are known: "a, b or c".
std::string KnownNames() {
  const std::vector<Isa> known = KnownIsas();
  std::string names;
  for (std::size_t i = 0; i < known.size(); ++i) {
    names += i == 0 ? "" : i + 1 == known.size() ? " or " : ", ";
    names += NameOf(known[i]);
  }
  return names;
}

/// Returns the name that the environment gives; empty if none.
std::string_view GivenName() {
  const char* const name = std::getenv(kVariable);
  return name == nullptr ? std::string_view() : name;
}

Isa IsaOf(std::string_view name) {
  for (const Isa isa : KnownIsas()) {
    if (name != NameOf(isa)) continue;
    const std::string got = std::string(kVariable) + ": got " + NameOf(isa) + ", expected ";
    if (!HasIsa(isa)) {
      const bool is_denied = isa == Isa::kAmx && AmxOfThis() == Amx::kDenied;
      throw std::runtime_error(
          got + "at most " + NameOf(BestIsa()) +
          (is_denied ? std::string(": ") + kDeniedText : ": this processor has no more"));
    }
    if (isa == Isa::kAmx && !AmxIsRight()) {
      throw std::runtime_error(got + NameOf(BestIsa()) + ": " + kWrongText);
    }
    return isa;
  }
  throw std::runtime_error(std::string(kVariable) + ": got '" + std::string(name) + "', expected " +
                           KnownNames());
}

}  // namespace

std::vector<Isa> KnownIsas() {
#if defined(__x86_64__)
  return {Isa::kPlain, Isa::kAvx2, Isa::kAvx512, Isa::kAmx};
#elif defined(__aarch64__)
  return {Isa::kPlain, Isa::kNeon, Isa::kDotprod, Isa::kI8mm};
#else
  return {Isa::kPlain};
#endif
}

const char* NameOf(Isa isa) {
  switch (isa) {
    case Isa::kI8mm:
      return "i8mm";
    case Isa::kDotprod:
      return "dotprod";
    case Isa::kNeon:
      return "neon";
    case Isa::kAmx:
      return "amx";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx2:
      return "avx2";
    default:
      return "plain";
  }
}

Isa BestVectorIsa() {
#if defined(__x86_64__)
  // What has AVX2 has F16C, which clang 14 cannot ask for.
  const bool has_avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  const bool has_avx512 =
      __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
      __builtin_cpu_supports("avx512vnni") != 0 && __builtin_cpu_supports("avx512bf16") != 0;
  if (has_avx2) return has_avx512 ? Isa::kAvx512 : Isa::kAvx2;
#elif defined(__aarch64__)
#if defined(__linux__)
  const bool has_dotprod = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
  const bool has_i8mm = (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
  if (has_dotprod) return has_i8mm ? Isa::kI8mm : Isa::kDotprod;
#endif
  return Isa::kNeon;
#endif
  return Isa::kPlain;
}

Isa BestIsa() {
  const Isa best = BestVectorIsa();
  const bool has_tiles = best == Isa::kAvx512 && AmxOfThis() == Amx::kUsable && AmxIsRight();
  return has_tiles ? Isa::kAmx : best;
}

std::string WhyNoTiles() {
  if (ChosenIsa() != Isa::kAvx512 || !GivenName().empty()) return {};
  switch (AmxOfThis()) {
    case Amx::kDenied:
      return kDeniedText;
    case Amx::kUsable:
      return AmxIsRight() ? "" : kWrongText;
    default:
      return {};
  }
}

bool HasIsa(Isa isa) {
  if (isa == Isa::kAmx) return BestVectorIsa() == Isa::kAvx512 && AmxOfThis() == Amx::kUsable;
  const std::vector<Isa> known = KnownIsas();
  return isa <= BestVectorIsa() && std::find(known.begin(), known.end(), isa) != known.end();
}

bool HasBfloat16(Isa isa) { return isa == Isa::kAvx512 || isa == Isa::kAmx; }

bool MultipliesBfloat16(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return __builtin_cpu_is("amd") != 0;
#endif
  return isa == Isa::kAmx;
}

Isa ChosenIsa() {
  const int chosen = Chosen().load(std::memory_order_relaxed);
  if (chosen != kUnknown) return static_cast<Isa>(chosen);
  const std::string_view name = GivenName();
  const Isa isa = name.empty() ? BestIsa() : IsaOf(name);
  Chosen().store(static_cast<int>(isa), std::memory_order_relaxed);
  return isa;
}

void ForceIsa(std::string_view name) { Chosen().store(static_cast<int>(IsaOf(name))); }

}  // namespace recsys::ops
