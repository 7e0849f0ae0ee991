#ifndef RECSYS_OPS_PROGRAM_TILES_H_
#define RECSYS_OPS_PROGRAM_TILES_H_

#include <cstdint>
#include <vector>

#include "ops/packed.h"

namespace recsys::ops {

struct Program;

/// The last steps of a program, where the rows of several tiles pass them together: a layer's
/// weights are many, and rows narrow from it on.
struct LateSteps {
  /// The first of them.
  std::int64_t first = 0;
  /// By buffer: the numbers before it in each row of these steps' own scratch memory; -1 for
  /// buffers that they do not use. Empty where no steps are late.
  std::vector<std::int64_t> index;
  /// Numbers of a row there.
  std::int64_t width = 0;

  bool any() const { return !index.empty(); }
};

/// Returns the rows of so many numbers in scratch memory that pass steps together.
std::int64_t TileOf(std::int64_t width);

/// Chooses the rows that pass all steps of a program together: few where they are wide, but not
/// where the weights, which are read for each tile, are more than what that saves; and the steps
/// that are late. `weights`: by constant, or none where they are not known.
void ChooseTiles(const std::vector<Packed>& weights, Program* program);

}  // namespace recsys::ops

#endif  // RECSYS_OPS_PROGRAM_TILES_H_
