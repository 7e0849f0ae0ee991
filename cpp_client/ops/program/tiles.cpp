#include "ops/program/tiles.h"

#include <algorithm>
#include <cstddef>

#include "ops/program/bags/places.h"
#include "ops/program/program.h"

namespace recsys::ops {
namespace {

/// Numbers of scratch memory that a tile takes, which stay in the cache.
constexpr std::int64_t kTileNumbers = 1 << 17;
/// Wider rows pass in smaller tiles.
constexpr std::int64_t kWideRow = 1 << 13;
/// Layers with more weights take longer to read them for a few rows than to multiply.
constexpr std::int64_t kManyWeights = 1 << 18;

std::int64_t NumWeightsOf(const Packed& weights) {
  return weights.num_inputs * weights.num_outputs;
}

class LateScratch {
 public:
  explicit LateScratch(const Program& program)
      : program_(program), is_written_(program.buffers.size()) {}

  /// Returns the steps from `first` on, or none if they cannot be late.
  LateSteps From(std::int64_t first) {
    late_.index.assign(program_.buffers.size(), -1);
    for (std::int64_t i = 0; i < Count(); ++i) {
      const Step& step = program_.steps[static_cast<std::size_t>(i)];
      if (i >= first && !Take(step)) return {};
      if (step.out.width > 0) is_written_[static_cast<std::size_t>(step.out.buffer)] = true;
    }
    late_.first = first;
    return late_.width <= kWideRow ? late_ : LateSteps{};
  }

 private:
  std::int64_t Count() const { return static_cast<std::int64_t>(program_.steps.size()); }

  /// Gives the buffers of a step places. Returns false if it is none that can be late.
  bool Take(const Step& step) {
    if (!ComputesNumbers(step)) return false;
    for (const Place& place : {step.a, step.b, step.c}) {
      // Another buffer has the place of what nothing has written by its own name.
      if (place.width > 0 && IsScratch(place) &&
          !is_written_[static_cast<std::size_t>(place.buffer)]) {
        return false;
      }
    }
    for (const Place& place : {step.out, step.a, step.b, step.c}) {
      if (place.width == 0 || !IsScratch(place)) continue;
      std::int64_t& index = late_.index[static_cast<std::size_t>(place.buffer)];
      if (index >= 0) continue;
      index = late_.width;
      late_.width += ScratchWidth(program_.buffers[static_cast<std::size_t>(place.buffer)].width);
    }
    return true;
  }

  bool IsScratch(const Place& place) const {
    return program_.buffers[static_cast<std::size_t>(place.buffer)].kind == BufferKind::kScratch;
  }

  const Program& program_;
  std::vector<bool> is_written_;
  LateSteps late_;
};

}  // namespace

std::int64_t TileOf(std::int64_t width) {
  return width <= kWideRow ? kProgramRows : std::max<std::int64_t>(kTileNumbers / width, 1);
}

void ChooseTiles(const std::vector<Packed>& weights, Program* program) {
  std::int64_t num_weights = 0;
  for (const Packed& some : weights) num_weights += NumWeightsOf(some);
  program->tile_rows = num_weights > kProgramRows * program->scratch_width
                           ? kProgramRows
                           : TileOf(program->scratch_width);
  program->tile_ids = TileOf(program->ids_width);
  program->late = {};
  // What is kept where bags grow lies in one scratch memory.
  if (program->growing.any()) return;
  if (program->tile_rows == kProgramRows || weights.empty()) return;
  const auto num_steps = static_cast<std::int64_t>(program->steps.size());
  for (std::int64_t i = 0; i < num_steps && !program->late.any(); ++i) {
    const Step& step = program->steps[static_cast<std::size_t>(i)];
    if (step.kind == StepKind::kEachId) i += step.index;
    const bool is_led = i > 0 && LeadsPlaces(program->steps[static_cast<std::size_t>(i - 1)]);
    if (step.kind != StepKind::kLinear || is_led) continue;
    const Packed& of_step = weights[static_cast<std::size_t>(step.index)];
    const bool is_late =
        of_step.num_inputs == step.a.width && NumWeightsOf(of_step) >= kManyWeights;
    if (is_late) program->late = LateScratch(*program).From(i);
  }
}

}  // namespace recsys::ops
