#ifndef RECSYS_OPS_SCRATCH_H_
#define RECSYS_OPS_SCRATCH_H_

#include <cstdint>

namespace recsys::ops {

/// What a thread's memory is used for; each use has its own.
enum class Scratch {
  kTile,
  kScales,
  kColumns,
  kProducts,
  kBuffers,
  kPanels,
  kIds,
  kIdBuffers,
  kRun,
  kLateBuffers,
  kContexts,
};
constexpr int kNumScratches = 11;

/// Returns at least `num_bytes` of the calling thread's memory for a use, until it asks for more.
///
/// Not a template: kernels are compiled for instructions that not every processor has, so they must
/// leave no code behind that the linker could choose for other callers.
char* ScratchOf(Scratch use, std::int64_t num_bytes);

}  // namespace recsys::ops

#endif  // RECSYS_OPS_SCRATCH_H_
