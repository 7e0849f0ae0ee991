#include "ops/program/bags/places.h"
#include "ops/program/program.h"

namespace recsys::ops {

std::string CheckBound(const BoundProgram& bound) {
  std::int64_t feature = 0;
  const std::vector<Step>& steps = bound.program->steps;
  for (std::size_t at = 0; at < steps.size(); ++at) {
    const Step& step = steps[at];
    if (step.kind == StepKind::kEachId && step.a.width == 0) {
      feature = bound.program->features[static_cast<std::size_t>(step.extra)].feature;
    }
    if (step.kind == StepKind::kLinear) {
      const Packed& weights = bound.weights[static_cast<std::size_t>(step.index)];
      const std::int64_t num_vectors = step.a.width / weights.num_inputs;
      if (num_vectors < 1 || weights.num_inputs * num_vectors != step.a.width ||
          weights.num_outputs * num_vectors != step.out.width) {
        return "got weights of " + std::to_string(weights.num_outputs) + " by " +
               std::to_string(weights.num_inputs) + ", expected " + std::to_string(step.out.width) +
               " by " + std::to_string(step.a.width);
      }
      if (at > 0 && LeadsPlaces(steps[at - 1]) && steps[at - 1].index % weights.num_outputs != 0) {
        return "got places of " + std::to_string(steps[at - 1].index) +
               " numbers, expected vectors of " + std::to_string(weights.num_outputs);
      }
    }
    if (!IsLookup(step)) continue;
    const Lookup& lookup = bound.lookups[static_cast<std::size_t>(step.index)];
    if (step.kind == StepKind::kSequence &&
        (lookup.num_slots != 1 || lookup.slots[0].column != 0 || lookup.weights != nullptr ||
         step.out.width % lookup.slots[0].dim != 0)) {
      return "got a sequence of " + std::to_string(lookup.num_slots) +
             " features, expected vectors of one";
    }
    if (step.kind == StepKind::kReadIds &&
        (lookup.num_slots != 1 || lookup.slots[0].column != 0 || lookup.weights != nullptr ||
         step.out.width != lookup.slots[0].dim || lookup.slots[0].feature != feature)) {
      return "got a lookup for each ID of another feature, or of several";
    }
    for (std::int64_t i = 0; i < lookup.num_slots; ++i) {
      const Slot& slot = lookup.slots[i];
      if (slot.column > step.out.width - slot.dim) {
        return "got a lookup with columns behind " + std::to_string(step.out.width);
      }
    }
  }
  return {};
}

}  // namespace recsys::ops
