#ifndef RECSYS_OPS_PROGRAM_STEP_TIMES_H_
#define RECSYS_OPS_PROGRAM_STEP_TIMES_H_

// What the steps of a program did in a call: their sizes, the least work that these need, and the
// time.

#include <cstdint>
#include <string>
#include <vector>

#include "ops/program/program.h"

namespace recsys::ops {

struct StepTime {
  /// NameOf its kind, or what else took the time.
  std::string kind;
  /// That of the ElementwiseKind; empty for steps without one.
  std::string of;
  /// Rows of the batch, or IDs, that it ran over.
  std::int64_t num_rows = 0;
  /// Numbers that it reads and writes for each.
  std::int64_t in_width = 0, out_width = 0;
  /// Rows of tables that it read.
  std::int64_t num_ids = 0;
  /// Additions and multiplications of its products, and the type of their factors.
  std::int64_t flops = 0;
  std::string dtype;
  /// Bytes that it reads at least, besides rows of tables.
  std::int64_t num_bytes = 0;
  StepClock::Clock::duration time{};
  /// "contexts" of a ranking form's steps that run once for each context, "rows" of its others;
  /// empty in a plain form.
  const char* space = "";
};

/// Returns the steps of a program that ran over all rows of a batch.
std::vector<StepTime> StepTimes(const BoundProgram& bound, std::int64_t num_rows,
                                const StepClock& clock);

}  // namespace recsys::ops

#endif  // RECSYS_OPS_PROGRAM_STEP_TIMES_H_
