#ifndef RECSYS_OPS_ISA_H_
#define RECSYS_OPS_ISA_H_

#include <string_view>

namespace recsys::ops {

/// The instructions that kernels may use. Each includes those before it.
enum class Isa {
  /// What the compiler takes for granted: right on every processor.
  kPlain,
  /// AVX2, FMA and F16C.
  kAvx2,
  /// AVX-512 F, BW, DQ and VL, with VNNI and BF16.
  kAvx512,
};

/// Returns the name: "plain", "avx2" or "avx512".
const char* NameOf(Isa isa);

/// Returns the most that this processor can do.
Isa BestIsa();

/// Returns what kernels use: the environment variable RECSYS_ISA, else BestIsa().
/// Throws std::runtime_error if the variable names none, or one that this processor lacks.
Isa ChosenIsa();

/// Sets what kernels use from now on; for tests. Throws as ChosenIsa does.
void ForceIsa(std::string_view name);

}  // namespace recsys::ops

#endif  // RECSYS_OPS_ISA_H_
