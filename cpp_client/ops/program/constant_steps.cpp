#include "ops/program/constant_steps.h"

#include <set>
#include <utility>

#include "ops/program/bags/places.h"

namespace recsys::ops {
namespace {

/// Finds the scratch buffers that hold the same numbers for every row.
class Finding {
 public:
  explicit Finding(const Program& program)
      : program_(program), is_constant_(program.buffers.size()) {
    for (std::size_t i = 1; i < program.steps.size(); ++i) {
      // How much it computes is something else in each row.
      if (LeadsPlaces(program.steps[i - 1])) led_.insert(&program.steps[i]);
    }
    for (const Step& step : program.steps) {
      if (step.out.width != 0 && KindOf(step.out) == BufferKind::kScratch) At(step.out) = true;
    }
    // What fails for one buffer may fail for those that are computed of it.
    for (bool has_changed = true; has_changed;) has_changed = Drop();
  }

  bool IsConstant(std::size_t buffer) const { return is_constant_[buffer]; }

  bool IsConstant(const Step& step) const {
    const bool computes = ComputesNumbers(step) || step.kind == StepKind::kTake;
    const bool is_of_rows = !computes || led_.count(&step) > 0;
    if (is_of_rows || !is_constant_[static_cast<std::size_t>(step.out.buffer)]) return false;
    for (const Place& place : {step.a, step.b, step.c}) {
      if (place.width != 0 && KindOf(place) != BufferKind::kConstant &&
          !is_constant_[static_cast<std::size_t>(place.buffer)]) {
        return false;
      }
    }
    return true;
  }

 private:
  BufferKind KindOf(const Place& place) const {
    return program_.buffers[static_cast<std::size_t>(place.buffer)].kind;
  }
  std::vector<bool>::reference At(const Place& place) {
    return is_constant_[static_cast<std::size_t>(place.buffer)];
  }

  /// Drops buffers that another step writes, too, or that a step reads before they are complete.
  bool Drop() {
    bool has_changed = false;
    std::vector<bool> is_read(program_.buffers.size());
    for (const Step& step : program_.steps) {
      const bool is_constant = IsConstant(step);
      if (step.out.width != 0 && At(step.out) &&
          (!is_constant || is_read[static_cast<std::size_t>(step.out.buffer)])) {
        At(step.out) = false;
        has_changed = true;
      }
      if (is_constant) continue;
      for (const Place& place : {step.a, step.b, step.c}) {
        if (place.width != 0) is_read[static_cast<std::size_t>(place.buffer)] = true;
      }
    }
    return has_changed;
  }

  const Program& program_;
  std::vector<bool> is_constant_;
  std::set<const Step*> led_;
};

}  // namespace

ConstantSteps TakeConstantSteps(std::int64_t num_constants, Program* program) {
  const Finding finding(*program);
  ConstantSteps taken;
  std::vector<Step> left;
  for (const Step& step : program->steps) {
    (finding.IsConstant(step) ? taken.program.steps : left).push_back(step);
  }
  if (taken.program.steps.empty()) return taken;
  taken.program.buffers = program->buffers;
  taken.program.forms = program->forms;
  for (std::size_t i = 0; i < program->buffers.size(); ++i) {
    if (!finding.IsConstant(i)) continue;
    const auto at = static_cast<std::int64_t>(taken.buffers.size());
    const std::int64_t width = program->buffers[i].width;
    taken.program.buffers[i] = {BufferKind::kOutput, at, width};
    program->buffers[i] = {BufferKind::kConstant, num_constants + at, width};
    taken.buffers.push_back(i);
  }
  taken.program.num_outputs = static_cast<std::int64_t>(taken.buffers.size());
  program->steps = std::move(left);
  MeasureScratch(program);
  return taken;
}

}  // namespace recsys::ops
