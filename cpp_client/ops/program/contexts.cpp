#include "ops/program/contexts.h"

#include <algorithm>
#include <cstddef>

#include "ops/scratch.h"

namespace recsys::ops {
namespace {

/// Numbers that are copied in the time that a step takes to begin.
constexpr std::int64_t kStepNumbers = 1 << 10;

/// Returns how many numbers are copied in the time that a tile takes beside the work of its rows:
/// its steps begin, and the weights of layers are read again.
std::int64_t TileNumbers(const BoundProgram& bound) {
  std::int64_t count = 0;
  for (const Step& step : bound.program->steps) {
    count += kStepNumbers;
    if (step.kind != StepKind::kLinear) continue;
    const Packed& weights = bound.weights[static_cast<std::size_t>(step.index)];
    // Those of a layer over several vectors are read for each row.
    if (weights.num_inputs == step.a.width) count += weights.num_inputs * weights.num_outputs;
  }
  return count;
}

}  // namespace

std::int64_t RunOfContext(const std::int64_t* row_context, std::int64_t first, std::int64_t end) {
  const std::int64_t* const from = row_context + first;
  return std::find_if(from, row_context + end, [from](std::int64_t at) { return at != *from; }) -
         from;
}

ContextRows::ContextRows(const BoundProgram& bound)
    : bound_(bound), tile_rows_(bound.program->tile_rows) {
  if (bound.contexts.buffers.empty()) return;
  found_.resize(bound.program->buffers.size());
  for (const std::size_t at : bound.contexts.buffers) width_ += bound.program->buffers[at].width;
  least_copied_ = TileNumbers(bound);
}

std::int64_t ContextRows::TileFrom(std::int64_t first, std::int64_t end) const {
  const std::int64_t most = std::min(tile_rows_, end - first);
  if (found_.empty()) return most;
  std::int64_t count = 0;
  while (count < most) {
    const std::int64_t at = first + count;
    const std::int64_t run =
        RunOfContext(bound_.contexts.of_row, at, std::min(at + tile_rows_, end));
    const bool is_worth_a_tile = run * width_ >= least_copied_;
    if (is_worth_a_tile && count > 0) break;
    count = std::min(count + run, most);
    if (is_worth_a_tile) break;
  }
  return count;
}

std::int64_t ContextRows::Find(std::int64_t first, std::int64_t num_rows) {
  const std::int64_t* const of_row = bound_.contexts.of_row;
  const bool is_shared = RunOfContext(of_row, first, first + num_rows) == num_rows;
  float* to = is_shared ? nullptr
                        : reinterpret_cast<float*>(ScratchOf(
                              Scratch::kContexts, num_rows * width_ * std::int64_t{sizeof(float)}));
  for (const std::size_t at : bound_.contexts.buffers) {
    const Rows from = bound_.reads[at];
    if (is_shared) {
      found_[at] = {from.data + of_row[first] * from.stride, 0};
      continue;
    }
    const std::int64_t width = bound_.program->buffers[at].width;
    found_[at] = {to, width};
    for (std::int64_t row = first; row < first + num_rows; ++row, to += width) {
      std::copy_n(from.data + of_row[row] * from.stride, width, to);
    }
  }
  return is_shared ? 0 : num_rows;
}

}  // namespace recsys::ops
