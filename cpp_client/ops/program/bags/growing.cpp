#include "ops/program/bags/growing.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "ops/program/bags/places.h"
#include "ops/program/program.h"

namespace recsys::ops {
namespace {

/// More places, and as many numbers of each, no program has.
constexpr std::int64_t kMostPlaces = 1 << 12;

bool IsRight(const Growing::Kept& kept, const Growing& growing, const Program& program) {
  if (kept.buffer < 0 || kept.buffer >= static_cast<std::int64_t>(program.buffers.size())) {
    return false;
  }
  const Buffer& buffer = program.buffers[static_cast<std::size_t>(kept.buffer)];
  const bool is_written = buffer.kind == BufferKind::kScratch || buffer.kind == BufferKind::kOutput;
  return is_written && (kept.each == 0 || (buffer.width % growing.size == 0 &&
                                           kept.each == buffer.width / growing.size));
}

/// Whether a step can begin behind the first place.
bool CanBegin(const Step& leading, const Step& step, std::int64_t loop) {
  switch (step.kind) {
    case StepKind::kLinear:
      return loop == 0;
    case StepKind::kElementwise: {
      if (loop != 0) return false;
      const auto kind = static_cast<ElementwiseKind>(step.index);
      const bool is_run = Of(kind).operands == Operands::kShares &&
                          leading.kind == StepKind::kFirst &&
                          leading.index < step.out.width / std::max<std::int64_t>(step.extra, 1);
      return !is_run;
    }
    case StepKind::kContract:
      // Not that of sums.
      return loop == (leading.index & loop) && (loop == 1 || loop == 2 || loop == 4);
    case StepKind::kBroadcast:
      return loop == (leading.index & loop) && (loop == 1 || loop == 2 || loop == 4 || loop == 8);
    default:
      return false;
  }
}

}  // namespace

void DropGrowingOfConstants(Program* program) {
  for (const Growing::Kept& kept : program->growing.kept) {
    if (!IsRight(kept, program->growing, *program)) {
      program->growing = {};
      return;
    }
  }
}

std::int64_t NumbersOfState(const Program& program, std::int64_t num_ids) {
  std::int64_t count = 0;
  for (const Growing::Kept& kept : program.growing.kept) {
    count += kept.each > 0 ? num_ids * kept.each
                           : program.buffers[static_cast<std::size_t>(kept.buffer)].width;
  }
  return count;
}

std::string SetGrowing(Growing growing, const std::vector<std::vector<std::int64_t>>& steps,
                       Program* program) {
  if (growing.every < 1 || growing.size < 1 || growing.size > kMostPlaces)
    return "growing: got a wrong size";
  for (const Growing::Kept& kept : growing.kept) {
    if (!IsRight(kept, growing, *program)) return "growing: got a wrong buffer";
  }
  std::vector<std::int64_t> number(program->steps.size(), -1);
  std::int64_t num_leading = 0;
  for (std::size_t i = 0; i < program->steps.size(); ++i) {
    if (LeadsPlaces(program->steps[i])) number[i] = num_leading++;
  }
  growing.loops.assign(static_cast<std::size_t>(num_leading), -1);
  for (const std::vector<std::int64_t>& pair : steps) {
    const bool is_leading = pair.size() == 2 && pair[0] >= 0 &&
                            pair[0] < static_cast<std::int64_t>(number.size()) &&
                            number[static_cast<std::size_t>(pair[0])] >= 0;
    if (!is_leading) return "growing: got a wrong step";
    const auto at = static_cast<std::size_t>(pair[0]);
    const Step& leading = program->steps[at];
    if (leading.extra != growing.size || !CanBegin(leading, program->steps[at + 1], pair[1])) {
      return "growing: got a wrong step";
    }
    growing.loops[static_cast<std::size_t>(number[at])] = pair[1];
  }
  program->growing = std::move(growing);
  return {};
}

}  // namespace recsys::ops
