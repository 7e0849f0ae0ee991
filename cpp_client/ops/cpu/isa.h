#ifndef RECSYS_OPS_CPU_ISA_H_
#define RECSYS_OPS_CPU_ISA_H_

#include <string>
#include <string_view>
#include <vector>

namespace recsys::ops {

/// The instructions that kernels may use. Each includes those of its architecture before it.
enum class Isa {
  /// What the compiler takes for granted: right on every processor.
  kPlain,
  /// AVX2, FMA and F16C.
  kAvx2,
  /// AVX-512 F, BW, DQ and VL, with VNNI and BF16.
  kAvx512,
  /// The same with AMX for INT8 and BF16.
  kAmx,
  /// What every 64-bit ARM processor has.
  kNeon,
  /// With the dot product of bytes (FEAT_DotProd).
  kDotprod,
  /// With that of unsigned and signed bytes (FEAT_I8MM).
  kI8mm,
};

/// Returns those of the architecture that this is compiled for.
std::vector<Isa> KnownIsas();

/// Returns the name: "plain"; "avx2", "avx512" or "amx"; "neon", "dotprod" or "i8mm".
const char* NameOf(Isa isa);

/// Returns the most that this processor can do, AMX aside.
Isa BestVectorIsa();

/// Returns the most that this processor can do: AMX where the system lets this process use tiles
/// and these compute what they should.
Isa BestIsa();

/// Returns why kernels do not use the tiles that the processor has, though no name said so; empty
/// if they do, or it has none. Throws as ChosenIsa does.
std::string WhyNoTiles();

/// Returns whether this processor, and for AMX the system, can do it.
bool HasIsa(Isa isa);

/// Whether it has instructions that multiply bfloat16.
bool HasBfloat16(Isa isa);

/// Whether these multiply faster than others do in float32: those of AMX, and of AVX-512 on AMD's
/// processors (218 GFLOPS on Zen 4, 111 in float32). On Intel's they are slower (100 on Sapphire
/// Rapids, 180 in float32). By the vendor, so that all servers of a kind give the same bits.
bool MultipliesBfloat16(Isa isa);

/// Returns what kernels use: the environment variable RECSYS_ISA, else BestIsa().
/// Throws std::runtime_error if the variable names none, one that this processor lacks, or AMX that
/// computes wrong numbers here. The first call may take 2 ms, to check that.
Isa ChosenIsa();

/// Sets what kernels use from now on; for tests. Throws as ChosenIsa does.
void ForceIsa(std::string_view name);

}  // namespace recsys::ops

#endif  // RECSYS_OPS_CPU_ISA_H_
