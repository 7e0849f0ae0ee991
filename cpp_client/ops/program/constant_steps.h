#ifndef RECSYS_OPS_PROGRAM_CONSTANT_STEPS_H_
#define RECSYS_OPS_PROGRAM_CONSTANT_STEPS_H_

// Steps that read nothing but constants: they compute the same for every row of every batch, so
// they run once, when a program gets its constants.

#include <cstddef>
#include <vector>

#include "ops/program/program.h"

namespace recsys::ops {

struct ConstantSteps {
  /// The steps alone. The buffers that they write are outputs, of one row.
  Program program;
  /// The positions of those buffers, in the order of the outputs.
  std::vector<std::size_t> buffers;
};

/// Removes such steps from a checked program. The buffers that they write become constants of it,
/// which follow those it has: `num_constants`.
ConstantSteps TakeConstantSteps(std::int64_t num_constants, Program* program);

}  // namespace recsys::ops

#endif  // RECSYS_OPS_PROGRAM_CONSTANT_STEPS_H_
