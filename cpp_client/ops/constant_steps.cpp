#include "ops/constant_steps.h"

#include <set>
#include <utility>

#include "ops/plan_places.h"

namespace recsys::ops {
namespace {

/// Finds the scratch buffers that hold the same numbers for every row.
class Finding {
 public:
  explicit Finding(const Plan& plan) : plan_(plan), is_constant_(plan.buffers.size()) {
    for (std::size_t i = 1; i < plan.steps.size(); ++i) {
      // How much it computes is something else in each row.
      if (LeadsPlaces(plan.steps[i - 1])) led_.insert(&plan.steps[i]);
    }
    for (const Step& step : plan.steps) {
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
    return plan_.buffers[static_cast<std::size_t>(place.buffer)].kind;
  }
  std::vector<bool>::reference At(const Place& place) {
    return is_constant_[static_cast<std::size_t>(place.buffer)];
  }

  /// Drops buffers that another step writes, too, or that a step reads before they are complete.
  bool Drop() {
    bool has_changed = false;
    std::vector<bool> is_read(plan_.buffers.size());
    for (const Step& step : plan_.steps) {
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

  const Plan& plan_;
  std::vector<bool> is_constant_;
  std::set<const Step*> led_;
};

}  // namespace

ConstantSteps TakeConstantSteps(std::int64_t num_constants, Plan* plan) {
  const Finding finding(*plan);
  ConstantSteps taken;
  std::vector<Step> left;
  for (const Step& step : plan->steps) {
    (finding.IsConstant(step) ? taken.plan.steps : left).push_back(step);
  }
  if (taken.plan.steps.empty()) return taken;
  taken.plan.buffers = plan->buffers;
  taken.plan.forms = plan->forms;
  for (std::size_t i = 0; i < plan->buffers.size(); ++i) {
    if (!finding.IsConstant(i)) continue;
    const auto at = static_cast<std::int64_t>(taken.buffers.size());
    const std::int64_t width = plan->buffers[i].width;
    taken.plan.buffers[i] = {BufferKind::kOutput, at, width};
    plan->buffers[i] = {BufferKind::kConstant, num_constants + at, width};
    taken.buffers.push_back(i);
  }
  taken.plan.num_outputs = static_cast<std::int64_t>(taken.buffers.size());
  plan->steps = std::move(left);
  MeasureScratch(plan);
  return taken;
}

}  // namespace recsys::ops
