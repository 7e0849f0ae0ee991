#include "ops/plan.h"

#include <algorithm>
#include <cstring>

#include "ops/scratch.h"

namespace recsys::ops {
namespace {

constexpr std::int64_t kPlanVersion = 3;
constexpr std::int64_t kHeader = 4, kOfBuffer = 3, kOfLookup = 7, kOfPlace = 3, kOfStep = 15;
/// Bounds against sums that overflow.
constexpr std::int64_t kMostItems = 1 << 12, kMostWidth = 1 << 24;

void Put(const Place& place, std::vector<std::int64_t>* numbers) {
  numbers->insert(numbers->end(), {place.buffer, place.column, place.width});
}

Place PlaceAt(const std::int64_t* at) { return {at[0], at[1], at[2]}; }

bool IsBelow(std::int64_t index, std::int64_t count) { return index >= 0 && index < count; }

class Checking {
 public:
  Checking(const Plan& plan, std::int64_t num_inputs, std::int64_t num_constants)
      : plan_(plan), num_inputs_(num_inputs), num_constants_(num_constants) {}

  std::string Text() const {
    for (std::size_t i = 0; i < plan_.buffers.size(); ++i) {
      if (!IsRight(plan_.buffers[i])) return Wrong("buffer", i);
    }
    for (std::size_t i = 0; i < plan_.lookups.size(); ++i) {
      if (!IsRight(plan_.lookups[i])) return Wrong("lookup", i);
    }
    for (std::size_t i = 0; i < plan_.steps.size(); ++i) {
      if (!IsRight(plan_.steps[i])) return Wrong("step", i);
    }
    return {};
  }

 private:
  static std::string Wrong(const char* what, std::size_t at) {
    return std::string("got a wrong ") + what + " at position " + std::to_string(at);
  }

  bool IsRight(const Buffer& buffer) const {
    if (buffer.width < 1 || buffer.width > kMostWidth) return false;
    switch (buffer.kind) {
      case BufferKind::kInput:
        return IsBelow(buffer.index, num_inputs_);
      case BufferKind::kConstant:
        return IsBelow(buffer.index, num_constants_);
      case BufferKind::kScratch:
        return IsBelow(buffer.index, kMostWidth);
      case BufferKind::kOutput:
        return IsBelow(buffer.index, plan_.num_outputs);
    }
    return false;
  }

  bool IsRight(const LookupSource& lookup) const {
    return IsBelow(lookup.rows, num_constants_) && IsBelow(lookup.slots, num_constants_) &&
           IsBelow(lookup.lengths, num_inputs_) && IsBelow(lookup.values, num_inputs_) &&
           (lookup.weights == -1 || IsBelow(lookup.weights, num_inputs_)) &&
           IsBelow(lookup.pooling, static_cast<std::int64_t>(Pooling::kNone)) &&
           lookup.num_features >= 1 && lookup.num_features <= kMostItems;
  }

  bool IsRight(const Step& step) const {
    for (const Place& place : {step.a, step.b, step.c}) {
      if (place.width != 0 && !CanRead(place)) return false;
    }
    if (!CanRead(step.out)) return false;
    const BufferKind to = plan_.buffers[static_cast<std::size_t>(step.out.buffer)].kind;
    if (to != BufferKind::kScratch && to != BufferKind::kOutput) return false;
    switch (step.kind) {
      case StepKind::kLookup:
        return IsBelow(step.index, static_cast<std::int64_t>(plan_.lookups.size()));
      case StepKind::kLinear:
        return CanRead(step.a) && IsBelow(step.index, num_constants_) && IsBelow(step.extra, 3);
      case StepKind::kDot:
        return CanRead(step.a) && IsBelow(step.index, 2) && step.extra >= 1 &&
               step.a.width % step.extra == 0 &&
               IsTriangle(step.a.width / step.extra, step.out.width);
      case StepKind::kElementwise:
        return IsElementwise(step);
    }
    return false;
  }

  bool IsElementwise(const Step& step) const {
    if (!IsBelow(step.index, kNumElementwise) || !CanRead(step.a)) return false;
    const std::int64_t width = step.out.width;
    switch (static_cast<ElementwiseKind>(step.index)) {
      case ElementwiseKind::kAdd:
      case ElementwiseKind::kSubtract:
      case ElementwiseKind::kMultiply:
      case ElementwiseKind::kDivide:
        return CanRead(step.b) && step.b.width == width &&
               IsProduct(step.a.width, step.extra, width);
      case ElementwiseKind::kMultiplyAdd:
        return CanRead(step.b) && CanRead(step.c) && step.a.width == width &&
               step.b.width == width && step.c.width == width;
      case ElementwiseKind::kSum:
        return IsProduct(width, step.extra, step.a.width);
      case ElementwiseKind::kNorm:
        return width == 1 && step.extra == step.a.width;
      default:
        return step.a.width == width;
    }
  }

  static bool IsTriangle(std::int64_t num, std::int64_t width) {
    return num >= 2 && num <= 1 << 12 && num * (num - 1) / 2 == width;
  }

  static bool IsProduct(std::int64_t a, std::int64_t b, std::int64_t product) {
    return b >= 1 && b <= kMostWidth && a * b == product;
  }

  bool CanRead(const Place& place) const {
    if (!IsBelow(place.buffer, static_cast<std::int64_t>(plan_.buffers.size()))) return false;
    const std::int64_t width = plan_.buffers[static_cast<std::size_t>(place.buffer)].width;
    return place.width >= 1 && place.width <= width && place.column >= 0 &&
           place.column <= width - place.width;
  }

  const Plan& plan_;
  const std::int64_t num_inputs_, num_constants_;
};

/// Rows that are fetched ahead for a tile; more would leave the cache before they are read.
constexpr std::int64_t kMostAhead = 4096;
/// Of those at a time: more would wait for each other.
constexpr std::int64_t kMostAtOnce = 8;

/// Where the rows of a tile's IDs lie.
struct FoundRows {
  std::vector<const std::uint8_t*> rows;
  /// Where those of each lookup begin.
  std::vector<std::int64_t> starts;

  std::int64_t count() const { return static_cast<std::int64_t>(rows.size()) - kRowsAhead; }
};

/// Runs a plan, one tile of rows after the other. The rows that a tile looks up are fetched while
/// linear layers of the tile before it, and its own ahead of the lookup, are computed.
class Tiles {
 public:
  Tiles(const BoundPlan& bound, const Kernels& kernels, FoundRows* found, FoundRows* next)
      : bound_(bound), kernels_(kernels), found_(found), next_(next) {
    const std::vector<Step>& steps = bound.plan->steps;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (steps[i].kind == StepKind::kLookup) last_lookup_ = static_cast<std::int64_t>(i);
    }
  }

  WrongId Run(std::int64_t first, std::int64_t end) {
    const std::int64_t num_rows = std::min(kPlanRows, end - first);
    const WrongId wrong = Find(first, num_rows, next_);
    if (wrong.lookup >= 0) return wrong;
    FetchNext(num_rows, false);
    for (; first < end; first += kPlanRows) {
      const WrongId found = RunTile(first, end);
      if (found.lookup >= 0) return found;
    }
    return {};
  }

 private:
  WrongId RunTile(std::int64_t first, std::int64_t end) {
    first_ = first;
    num_rows_ = std::min(kPlanRows, end - first);
    std::swap(found_, next_);
    scratch_ = reinterpret_cast<float*>(ScratchOf(
        Scratch::kBuffers, bound_.plan->scratch_width * num_rows_ * std::int64_t{sizeof(float)}));
    const std::vector<Step>& steps = bound_.plan->steps;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      Run(steps[i]);
      if (static_cast<std::int64_t>(i) != last_lookup_ || first + num_rows_ >= end) continue;
      const std::int64_t num_next = std::min(kPlanRows, end - first - num_rows_);
      const WrongId wrong = Find(first + num_rows_, num_next, next_);
      if (wrong.lookup >= 0) return wrong;
      FetchNext(num_rows_, true);
    }
    return {};
  }

  /// Finds the rows of a tile.
  WrongId Find(std::int64_t first, std::int64_t num_rows, FoundRows* found) const {
    found->starts.clear();
    std::int64_t count = 0;
    for (const Lookup& lookup : bound_.lookups) {
      found->starts.push_back(count);
      count += NumIds(PartOf(lookup, first, num_rows));
    }
    found->rows.resize(static_cast<std::size_t>(count + kRowsAhead));
    std::fill(found->rows.begin() + count, found->rows.end(),
              bound_.lookups.empty() ? nullptr : bound_.lookups[0].slots[0].rows);
    for (std::size_t i = 0; i < bound_.lookups.size(); ++i) {
      const std::int64_t wrong = kernels_.find(PartOf(bound_.lookups[i], first, num_rows),
                                               found->rows.data() + found->starts[i]);
      if (wrong >= 0) return {static_cast<std::int64_t>(i), wrong};
    }
    return {};
  }

  /// Lets linear layers fetch the rows of next_: those ahead of the lookups, and of a tile of
  /// num_rows rows also those behind them.
  void FetchNext(std::int64_t num_rows, bool is_behind) {
    ahead_ = {};
    if (last_lookup_ < 0) return;
    std::int64_t num_fetches = 0;
    const std::vector<Step>& steps = bound_.plan->steps;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (steps[i].kind != StepKind::kLinear) continue;
      if (static_cast<std::int64_t>(i) > last_lookup_ && !is_behind) continue;
      const Packed& weights = bound_.weights[static_cast<std::size_t>(steps[i].index)];
      num_fetches += NumFetches(weights.num_groups(), weights.num_outputs, num_rows);
    }
    if (num_fetches == 0) return;
    const Slot& slot = bound_.lookups[0].slots[0];
    ahead_.rows = next_->rows.data();
    ahead_.num_rows = std::min(next_->count(), kMostAhead);
    ahead_.row_bytes = RowBytes(slot.type, slot.dim);
    ahead_.at_once = std::min(ahead_.num_rows / num_fetches + 1, kMostAtOnce);
  }

  static Lookup PartOf(const Lookup& lookup, std::int64_t first, std::int64_t num_rows) {
    Lookup part = lookup;
    part.first_bag = first;
    part.end_bag = first + num_rows;
    return part;
  }

  void Run(const Step& step) {
    const OutRows out = Write(step.out);
    switch (step.kind) {
      case StepKind::kLookup: {
        const auto at = static_cast<std::size_t>(step.index);
        return kernels_.pool(PartOf(bound_.lookups[at], first_, num_rows_),
                             found_->rows.data() + found_->starts[at], out);
      }
      case StepKind::kLinear:
        return kernels_.linear(bound_.weights[static_cast<std::size_t>(step.index)], Read(step.a),
                               num_rows_, static_cast<Activation>(step.extra), out, &ahead_);
      case StepKind::kDot:
        return kernels_.dot(static_cast<WeightType>(step.index), Read(step.a), num_rows_,
                            {step.a.width / step.extra, step.extra}, out);
      case StepKind::kElementwise:
        return kernels_.elementwise(ElementwiseOf(step), out);
    }
  }

  Elementwise ElementwiseOf(const Step& step) const {
    Elementwise made;
    made.kind = static_cast<ElementwiseKind>(step.index);
    made.a = Read(step.a);
    made.b = step.b.width > 0 ? Read(step.b) : made.a;
    made.c = step.c.width > 0 ? Read(step.c) : made.a;
    made.num_rows = num_rows_;
    made.width = step.out.width;
    if (TakesFactor(made.kind)) {
      std::memcpy(&made.factor, &step.extra, sizeof(made.factor));
    } else {
      made.count = step.extra;
    }
    return made;
  }

  OutRows Write(const Place& place) const {
    const Buffer& buffer = bound_.plan->buffers[static_cast<std::size_t>(place.buffer)];
    if (buffer.kind == BufferKind::kScratch) {
      return {scratch_ + buffer.index * num_rows_ + place.column, ScratchWidth(buffer.width)};
    }
    const OutRows rows = bound_.writes[static_cast<std::size_t>(place.buffer)];
    return {rows.data + first_ * rows.stride + place.column, rows.stride};
  }

  Rows Read(const Place& place) const {
    const Buffer& buffer = bound_.plan->buffers[static_cast<std::size_t>(place.buffer)];
    if (buffer.kind == BufferKind::kScratch || buffer.kind == BufferKind::kOutput) {
      const OutRows rows = Write(place);
      return {rows.data, rows.stride};
    }
    const Rows rows = bound_.reads[static_cast<std::size_t>(place.buffer)];
    return {rows.data + first_ * rows.stride + place.column, rows.stride};
  }

  const BoundPlan& bound_;
  const Kernels& kernels_;
  FoundRows *found_, *next_;
  std::int64_t last_lookup_ = -1;
  Ahead ahead_;
  std::int64_t first_ = 0, num_rows_ = 0;
  float* scratch_ = nullptr;
};

}  // namespace

// Rows begin on cache lines, and lie no power of two apart.
std::int64_t ScratchWidth(std::int64_t width) { return (width + 15) / 16 * 16 + 16; }

std::vector<std::int64_t> WritePlan(const Plan& plan) {
  std::vector<std::int64_t> numbers = {kPlanVersion, static_cast<std::int64_t>(plan.buffers.size()),
                                       static_cast<std::int64_t>(plan.lookups.size()),
                                       static_cast<std::int64_t>(plan.steps.size())};
  for (const Buffer& buffer : plan.buffers) {
    numbers.insert(numbers.end(),
                   {static_cast<std::int64_t>(buffer.kind), buffer.index, buffer.width});
  }
  for (const LookupSource& lookup : plan.lookups) {
    numbers.insert(numbers.end(), {lookup.rows, lookup.slots, lookup.lengths, lookup.values,
                                   lookup.weights, lookup.pooling, lookup.num_features});
  }
  for (const Step& step : plan.steps) {
    numbers.push_back(static_cast<std::int64_t>(step.kind));
    for (const Place& place : {step.out, step.a, step.b, step.c}) Put(place, &numbers);
    numbers.insert(numbers.end(), {step.index, step.extra});
  }
  return numbers;
}

std::string ReadPlan(const std::int64_t* numbers, std::int64_t count, std::int64_t num_inputs,
                     std::int64_t num_constants, Plan* plan) {
  if (count < kHeader || numbers[0] != kPlanVersion) {
    return "got numbers that are no plan of version " + std::to_string(kPlanVersion);
  }
  const std::int64_t num_buffers = numbers[1], num_lookups = numbers[2], num_steps = numbers[3];
  if (num_buffers < 0 || num_buffers > kMostItems || num_lookups < 0 || num_lookups > kMostItems ||
      num_steps < 0 || num_steps > kMostItems ||
      count != kHeader + num_buffers * kOfBuffer + num_lookups * kOfLookup + num_steps * kOfStep) {
    return "got " + std::to_string(count) + " numbers, which are not those of a plan";
  }
  const std::int64_t* at = numbers + kHeader;
  plan->buffers.clear();
  plan->scratch_width = plan->num_outputs = 0;
  for (std::int64_t i = 0; i < num_buffers; ++i, at += kOfBuffer) {
    plan->buffers.push_back({static_cast<BufferKind>(at[0]), at[1], at[2]});
    const Buffer& buffer = plan->buffers.back();
    if (buffer.kind == BufferKind::kOutput) ++plan->num_outputs;
    // Not yet checked: neither number may make the sum overflow.
    if (buffer.kind == BufferKind::kScratch && IsBelow(buffer.index, kMostWidth) &&
        IsBelow(buffer.width, kMostWidth + 1)) {
      plan->scratch_width =
          std::max(plan->scratch_width, buffer.index + ScratchWidth(buffer.width));
    }
  }
  plan->lookups.clear();
  for (std::int64_t i = 0; i < num_lookups; ++i, at += kOfLookup) {
    plan->lookups.push_back({at[0], at[1], at[2], at[3], at[4], at[5], at[6]});
  }
  plan->steps.clear();
  for (std::int64_t i = 0; i < num_steps; ++i, at += kOfStep) {
    plan->steps.push_back({static_cast<StepKind>(at[0]), PlaceAt(at + 1),
                           PlaceAt(at + 1 + kOfPlace), PlaceAt(at + 1 + 2 * kOfPlace),
                           PlaceAt(at + 1 + 3 * kOfPlace), at[13], at[14]});
  }
  return Checking(*plan, num_inputs, num_constants).Text();
}

std::string CheckBound(const BoundPlan& bound) {
  for (const Step& step : bound.plan->steps) {
    if (step.kind == StepKind::kLinear) {
      const Packed& weights = bound.weights[static_cast<std::size_t>(step.index)];
      if (weights.num_inputs != step.a.width || weights.num_outputs != step.out.width) {
        return "got weights of " + std::to_string(weights.num_outputs) + " by " +
               std::to_string(weights.num_inputs) + ", expected " + std::to_string(step.out.width) +
               " by " + std::to_string(step.a.width);
      }
    }
    if (step.kind != StepKind::kLookup) continue;
    const Lookup& lookup = bound.lookups[static_cast<std::size_t>(step.index)];
    for (std::int64_t i = 0; i < lookup.num_slots; ++i) {
      const Slot& slot = lookup.slots[i];
      if (slot.column > step.out.width - slot.dim) {
        return "got a lookup with columns behind " + std::to_string(step.out.width);
      }
    }
  }
  return {};
}

WrongId RunPlan(const BoundPlan& bound, const Kernels& kernels, std::int64_t first,
                std::int64_t end) {
  thread_local FoundRows found, next;
  return Tiles(bound, kernels, &found, &next).Run(first, end);
}

}  // namespace recsys::ops
