#include "ops/program/step_times.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "ops/program/bags/places.h"
#include "ops/program/contexts.h"

namespace recsys::ops {
namespace {

constexpr std::int64_t kNumberBytes = sizeof(float);

const char* DtypeOf(WeightType type) {
  if (IsWhole(type)) return "int8";
  return type == WeightType::kBfloat16 ? "bfloat16" : "float32";
}

/// Returns the time that the clock itself takes of a lap.
StepClock::Clock::duration ClockTime() {
  static const StepClock::Clock::duration least = [] {
    StepClock::Clock::duration found = StepClock::Clock::duration::max();
    for (int i = 0; i < 256; ++i) {
      const auto start = StepClock::Clock::now();
      found = std::min(found, StepClock::Clock::now() - start);
    }
    return found;
  }();
  return least;
}

/// Tells the work of the steps of a program.
class Telling {
 public:
  Telling(const BoundProgram& bound, std::int64_t num_rows)
      : bound_(bound), num_rows_(num_rows), is_shared_(bound.program->buffers.size()) {
    for (const std::size_t at : bound.contexts.buffers) is_shared_[at] = true;
    const std::int64_t* const of_row = bound.contexts.of_row;
    for (std::int64_t row = 0; of_row != nullptr && row < num_rows; ++num_runs_) {
      row += RunOfContext(of_row, row, num_rows);
    }
  }

  /// Tells what was copied for rows that do not share a context with those beside them.
  StepTime TellCopies(const StepClock::Laps& laps) const {
    StepTime told;
    told.kind = "gather";
    told.num_rows = laps.num_rows;
    told.time = std::max(laps.time - laps.count * ClockTime(), {});
    for (const std::size_t at : bound_.contexts.buffers) {
      told.in_width += bound_.program->buffers[at].width;
    }
    told.out_width = told.in_width;
    told.num_bytes = kNumberBytes * told.in_width * told.num_rows;
    return told;
  }

  StepTime Tell(const Step& step, const StepClock::Laps& laps) const {
    StepTime told;
    told.kind = NameOf(step.kind);
    told.num_rows = laps.num_rows;
    told.time = std::max(laps.time - laps.count * ClockTime(), {});
    told.in_width = step.a.width + step.b.width + step.c.width;
    told.out_width = step.out.width;
    switch (step.kind) {
      case StepKind::kLookup:
      case StepKind::kSequence:
        told.num_ids = NumRowsRead(step);
        break;
      case StepKind::kLinear:
        TellLinear(step, &told);
        break;
      case StepKind::kDot:
        told.flops = told.num_rows * step.a.width * (step.a.width / step.extra - 1);
        told.dtype = DtypeOf(static_cast<WeightType>(step.index));
        told.num_bytes = BytesRead(step, told.num_rows);
        break;
      case StepKind::kContract:
        told.flops = 2 * told.num_rows;
        for (const std::int64_t size : FormOf(step).sizes) told.flops *= size;
        told.dtype = DtypeOf(WeightType::kFloat32);
        told.num_bytes = BytesRead(step, told.num_rows);
        break;
      case StepKind::kElementwise:
        told.of = Of(static_cast<ElementwiseKind>(step.index)).name;
        told.num_bytes = BytesRead(step, told.num_rows);
        break;
      case StepKind::kBroadcast:
        told.of = Of(static_cast<ElementwiseKind>(step.extra)).name;
        told.num_bytes = BytesRead(step, told.num_rows);
        break;
      case StepKind::kReadIds:
        told.num_ids = told.num_rows;
        break;
      case StepKind::kFromIds:
      case StepKind::kSumIds:
        told.num_bytes = BytesRead(step, told.num_rows);
        break;
      // These may read less than there is.
      case StepKind::kLength:
      case StepKind::kDifferences:
      case StepKind::kTake:
      case StepKind::kEachId:
      case StepKind::kFirst:
      case StepKind::kFirstPairs:
      case StepKind::kToIds:
        break;
    }
    return told;
  }

 private:
  const Form& FormOf(const Step& step) const {
    return bound_.program->forms[static_cast<std::size_t>(step.index)];
  }

  void TellLinear(const Step& step, StepTime* told) const {
    const Packed& weights = bound_.weights[static_cast<std::size_t>(step.index)];
    told->in_width = weights.num_inputs;
    told->out_width = weights.num_outputs;
    const std::int64_t num_vectors = told->num_rows * (step.a.width / weights.num_inputs);
    told->flops = 2 * num_vectors * weights.num_inputs * weights.num_outputs;
    told->dtype = DtypeOf(weights.type);
    told->num_bytes = BytesRead(step, told->num_rows) +
                      PackedBytes(weights.type, weights.num_inputs, weights.num_outputs);
  }

  std::int64_t BytesRead(const Step& step, std::int64_t num_rows) const {
    return BytesOf(step.a, num_rows) + BytesOf(step.b, num_rows) + BytesOf(step.c, num_rows);
  }

  /// Constants are the same for every row, and those of a context for rows that follow each other.
  std::int64_t BytesOf(const Place& place, std::int64_t num_rows) const {
    const auto at = static_cast<std::size_t>(place.buffer);
    const bool is_constant = bound_.program->buffers[at].kind == BufferKind::kConstant;
    if (is_shared_[at]) num_rows = std::min(num_rows, num_runs_);
    return kNumberBytes * place.width * (is_constant ? 1 : num_rows);
  }

  std::int64_t NumRowsRead(const Step& step) const {
    Lookup lookup = bound_.lookups[static_cast<std::size_t>(step.index)];
    lookup.first_bag = 0;
    lookup.end_bag = num_rows_;
    if (step.kind == StepKind::kLookup) return NumIds(lookup);
    const Slot& slot = lookup.slots[0];
    const std::int64_t* const offsets = OffsetsOf(lookup, slot);
    std::int64_t count = 0;
    for (std::int64_t bag = 0; bag < num_rows_; ++bag) {
      count += std::min(offsets[bag + 1] - offsets[bag], step.out.width / slot.dim);
    }
    return count;
  }

  const BoundProgram& bound_;
  const std::int64_t num_rows_;
  /// By buffer, whether it holds rows of contexts; and how often the context changes.
  std::vector<bool> is_shared_;
  std::int64_t num_runs_ = 0;
};

}  // namespace

std::vector<StepTime> StepTimes(const BoundProgram& bound, std::int64_t num_rows,
                                const StepClock& clock) {
  const Telling telling(bound, num_rows);
  std::vector<StepTime> times;
  if (!bound.contexts.buffers.empty()) times.push_back(telling.TellCopies(clock.copies()));
  for (std::size_t i = 0; i < clock.laps().size(); ++i) {
    const Step& step = bound.program->steps[i];
    // They take no time of their own.
    if (LeadsPlaces(step)) continue;
    const StepClock::Laps& laps = clock.laps()[i];
    StepTime told = telling.Tell(step, laps);
    if (laps.num_rows > 0) {
      // A step for the first places computes less than there is.
      const double share = laps.work / static_cast<double>(laps.num_rows);
      told.flops = std::llround(share * static_cast<double>(told.flops));
      told.num_bytes = std::llround(share * static_cast<double>(told.num_bytes));
    }
    times.push_back(told);
  }
  return times;
}

}  // namespace recsys::ops
