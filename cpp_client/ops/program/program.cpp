#include "ops/program/program.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "ops/program/bags/places.h"

namespace recsys::ops {
namespace {

/// The versions of programs: with steps for the first places, with forms or features, and with
/// neither.
constexpr std::int64_t kProgramVersion = 5, kWithoutPlaces = 4, kWithoutForms = 3;
constexpr std::int64_t kHeader = 4, kMoreHeader = 2;
/// Bounds against sums that overflow.
constexpr std::int64_t kMostItems = 1 << 12, kMostWidth = 1 << 24;
/// Times that a form may compute.
constexpr std::int64_t kMostLoops = std::int64_t{1} << 32;

/// Numbers of an item, which hold it as it lies in memory.
template <typename Item>
constexpr std::int64_t kNumbersOf = sizeof(Item) / sizeof(std::int64_t);
static_assert(kNumbersOf<Buffer> == 3 && kNumbersOf<LookupSource> == 7 && kNumbersOf<Step> == 15 &&
                  kNumbersOf<FeatureSource> == 4 && kNumbersOf<Form> == 1 + 4 * kLoops,
              "items of files");

/// Takes items off the front of numbers.
template <typename Item>
void Take(const std::int64_t** at, std::int64_t count, std::vector<Item>* items) {
  static_assert(std::is_trivially_copyable_v<Item> && sizeof(Item) % sizeof(std::int64_t) == 0,
                "an item of whole numbers");
  items->resize(static_cast<std::size_t>(count));
  void* const to = items->data();
  if (count > 0) std::memcpy(to, *at, items->size() * sizeof(Item));
  *at += count * kNumbersOf<Item>;
}

bool IsBelow(std::int64_t index, std::int64_t count) { return index >= 0 && index < count; }

class Checking {
 public:
  Checking(const Program& program, std::int64_t num_inputs, std::int64_t num_constants)
      : program_(program), num_inputs_(num_inputs), num_constants_(num_constants) {}

  std::string Text() const {
    for (std::size_t i = 0; i < program_.buffers.size(); ++i) {
      if (!IsRight(program_.buffers[i])) return Wrong("buffer", i);
    }
    for (std::size_t i = 0; i < program_.lookups.size(); ++i) {
      if (!IsRight(program_.lookups[i])) return Wrong("lookup", i);
    }
    for (std::size_t i = 0; i < program_.features.size(); ++i) {
      if (!IsRight(program_.features[i])) return Wrong("feature", i);
    }
    for (std::size_t i = 0; i < program_.forms.size(); ++i) {
      if (!IsRight(program_.forms[i])) return Wrong("form", i);
    }
    // The step that leads those before `end`, if one does.
    const Step* each = nullptr;
    std::size_t end = 0;
    for (std::size_t i = 0; i < program_.steps.size(); ++i) {
      const Step& step = program_.steps[i];
      if (i >= end) each = nullptr;
      if (LeadsPlaces(step)) {
        if (each != nullptr || !IsOfPlaces(i)) return Wrong("step", i);
        continue;
      }
      if (step.kind != StepKind::kEachId) {
        if (!IsRight(step) || !IsIn(step, each)) return Wrong("step", i);
        continue;
      }
      if (each != nullptr ||
          !IsEachId(step, Count(program_.steps) - static_cast<std::int64_t>(i) - 1)) {
        return Wrong("step", i);
      }
      each = &step;
      end = i + 1 + static_cast<std::size_t>(step.index);
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
      case BufferKind::kIds:
        return IsBelow(buffer.index, kMostWidth);
      case BufferKind::kOutput:
        return IsBelow(buffer.index, program_.num_outputs);
    }
    return false;
  }

  bool IsRight(const LookupSource& lookup) const {
    return IsBelow(lookup.rows, num_constants_) && IsBelow(lookup.slots, num_constants_) &&
           IsBelow(lookup.lengths, num_inputs_) && IsBelow(lookup.values, num_inputs_) &&
           (lookup.weights == -1 || IsBelow(lookup.weights, num_inputs_)) &&
           IsBelow(lookup.pooling, static_cast<std::int64_t>(Pooling::kNone) + 1) &&
           lookup.num_features >= 1 && lookup.num_features <= kMostItems;
  }

  bool IsRight(const FeatureSource& feature) const {
    return IsBelow(feature.lengths, num_inputs_) && IsBelow(feature.values, num_inputs_) &&
           feature.num_features >= 1 && feature.num_features <= kMostItems &&
           IsBelow(feature.feature, feature.num_features);
  }

  static bool IsRight(const Form& form) {
    std::int64_t count = 1;
    for (int i = 0; i < kLoops; ++i) {
      if (form.sizes[i] < 1 || form.sizes[i] > kMostWidth) return false;
      count *= form.sizes[i];
      if (count > kMostLoops) return false;
      for (const auto& strides : {form.strides.out, form.strides.a, form.strides.b}) {
        if (!IsBelow(strides[i], kMostWidth)) return false;
      }
    }
    return true;
  }

  bool IsRight(const Step& step) const {
    for (const Place& place : {step.a, step.b, step.c}) {
      if (place.width != 0 && !CanRead(place)) return false;
    }
    if (!CanRead(step.out)) return false;
    const BufferKind to = KindOf(step.out);
    if (to == BufferKind::kInput || to == BufferKind::kConstant) return false;
    switch (step.kind) {
      case StepKind::kLookup:
        return IsBelow(step.index, Count(program_.lookups)) && !IsSequence(step);
      case StepKind::kSequence:
        return IsBelow(step.index, Count(program_.lookups)) && IsSequence(step) &&
               IsBelow(step.extra, kNumSequenceOrder);
      case StepKind::kLength:
        return IsBelow(step.index, Count(program_.features)) && step.out.width == 1;
      case StepKind::kDifferences:
        return IsBelow(step.index, Count(program_.features)) && step.extra >= 1 &&
               step.extra <= kMostItems && step.extra * step.extra == step.out.width;
      case StepKind::kTake:
        return CanRead(step.a) && CanRead(step.b) && !Overlap(step.out, step.a) &&
               !Overlap(step.out, step.b) && step.extra >= 1 && step.extra <= kMostWidth &&
               step.b.width % step.extra == 0 && step.a.width * step.extra == step.out.width;
      case StepKind::kEachId:
      case StepKind::kFirst:
      case StepKind::kFirstPairs:
        return false;
      case StepKind::kToIds:
      case StepKind::kFromIds:
      case StepKind::kSumIds:
        return CanRead(step.a);
      case StepKind::kReadIds:
        return IsBelow(step.index, Count(program_.lookups)) && IsSequence(step);
      case StepKind::kContract:
      case StepKind::kBroadcast:
        return IsFormed(step);
      case StepKind::kLinear:
        return CanRead(step.a) && !Overlap(step.out, step.a) &&
               IsBelow(step.index, num_constants_) && IsBelow(step.extra, kNumActivation);
      case StepKind::kDot:
        return CanRead(step.a) && !Overlap(step.out, step.a) && IsBelow(step.index, 2) &&
               step.extra >= 1 && step.a.width % step.extra == 0 &&
               IsTriangle(step.a.width / step.extra, step.out.width);
      case StepKind::kElementwise:
        return IsElementwise(step);
    }
    return false;
  }

  /// Whether a step leads others, of `num_left` behind it.
  bool IsEachId(const Step& step, std::int64_t num_left) const {
    if (step.index < 1 || step.index > num_left) return false;
    if (step.a.width == 0) return IsBelow(step.extra, Count(program_.features));
    return step.extra >= 1 && step.extra <= kMostWidth && CanRead(step.a) && step.a.width == 1 &&
           KindOf(step.a) != BufferKind::kIds;
  }

  /// Whether a step leads the one behind it, whose places it bounds.
  bool IsOfPlaces(std::size_t at) const {
    const Step& step = program_.steps[at];
    return at + 1 < program_.steps.size() && step.out.width == 0 && CanRead(step.a) &&
           step.a.width == 1 && KindOf(step.a) != BufferKind::kIds &&
           // It is read again for each row.
           IsRight(program_.steps[at + 1]) && !Overlap(step.a, program_.steps[at + 1].out) &&
           HasPlaces(step, program_.steps[at + 1], program_.forms);
  }

  /// Whether a step reads and writes what there is: rows of IDs behind a step for `each`, or none.
  bool IsIn(const Step& step, const Step* each) const {
    const bool is_to_ids = step.kind == StepKind::kToIds;
    const bool is_from_ids = step.kind == StepKind::kFromIds,
               is_sum = step.kind == StepKind::kSumIds;
    const bool writes_ids = KindOf(step.out) == BufferKind::kIds;
    for (const Place& place : {step.a, step.b, step.c}) {
      if (place.width == 0) continue;
      const BufferKind kind = KindOf(place);
      const bool reads_ids = kind == BufferKind::kIds;
      const bool fits =
          each == nullptr || is_to_ids ? !reads_ids : kind == BufferKind::kConstant || reads_ids;
      if (!fits) return false;
    }
    if (each == nullptr) {
      return !writes_ids && !is_to_ids && !is_from_ids && !is_sum &&
             step.kind != StepKind::kReadIds;
    }
    // Where the steps take all IDs, none has a place.
    const bool has_places = each->a.width != 0;
    if (is_sum) return !writes_ids && step.a.width == step.out.width;
    if (is_from_ids) {
      return !writes_ids && has_places && IsProduct(step.a.width, each->extra, step.out.width);
    }
    if (!writes_ids) return false;
    switch (step.kind) {
      case StepKind::kToIds:
        return step.a.width == step.out.width ||
               (has_places && IsProduct(step.out.width, each->extra, step.a.width));
      case StepKind::kReadIds:
        return !has_places && IsOfFeature(program_.lookups[static_cast<std::size_t>(step.index)],
                                          program_.features[static_cast<std::size_t>(each->extra)]);
      case StepKind::kLookup:
      case StepKind::kSequence:
      case StepKind::kLength:
      case StepKind::kDifferences:
        return false;
      default:
        return true;
    }
  }

  static bool IsOfFeature(const LookupSource& lookup, const FeatureSource& feature) {
    return lookup.lengths == feature.lengths && lookup.values == feature.values &&
           lookup.num_features == feature.num_features;
  }

  BufferKind KindOf(const Place& place) const {
    return program_.buffers[static_cast<std::size_t>(place.buffer)].kind;
  }

  template <typename Item>
  static std::int64_t Count(const std::vector<Item>& items) {
    return static_cast<std::int64_t>(items.size());
  }

  bool IsSequence(const Step& step) const {
    return program_.lookups[static_cast<std::size_t>(step.index)].pooling ==
           static_cast<std::int64_t>(Pooling::kNone);
  }

  /// Whether two places share memory.
  bool Overlap(const Place& one, const Place& other) const {
    const Buffer& buffer = program_.buffers[static_cast<std::size_t>(one.buffer)];
    const Buffer& second = program_.buffers[static_cast<std::size_t>(other.buffer)];
    if (one.buffer == other.buffer) {
      return one.column < other.column + other.width && other.column < one.column + one.width;
    }
    if (buffer.kind != second.kind) return false;
    if (buffer.kind == BufferKind::kOutput) return buffer.index == second.index;
    return (buffer.kind == BufferKind::kScratch || buffer.kind == BufferKind::kIds) &&
           buffer.index < second.index + ScratchWidth(second.width) &&
           second.index < buffer.index + ScratchWidth(buffer.width);
  }

  /// Returns the numbers behind the first one that loops reach.
  static std::int64_t Extent(const Form& form, const std::int64_t* strides) {
    std::int64_t extent = 1;
    for (int i = 0; i < kLoops; ++i) extent += (form.sizes[i] - 1) * strides[i];
    return extent;
  }

  bool IsFormed(const Step& step) const {
    if (!IsBelow(step.index, Count(program_.forms)) || !CanRead(step.a)) return false;
    const Form& form = program_.forms[static_cast<std::size_t>(step.index)];
    const Strides& by = form.strides;
    const bool is_sum = step.kind == StepKind::kContract;
    const bool takes_two =
        is_sum || step.extra != static_cast<std::int64_t>(ElementwiseKind::kCopy);
    if (Extent(form, by.out) > step.out.width || Extent(form, by.a) > step.a.width ||
        Overlap(step.out, step.a)) {
      return false;
    }
    if (takes_two &&
        (!CanRead(step.b) || Extent(form, by.b) > step.b.width || Overlap(step.out, step.b))) {
      return false;
    }
    if (is_sum) {
      return by.out[3] == 0 && by.a[2] == 0 && by.b[1] == 0 &&
             form.sizes[2] * form.sizes[3] <= kMostWidth;
    }
    // Without a second operand the first one is read in its place.
    if (!takes_two && Extent(form, by.b) > step.a.width) return false;
    if (!takes_two) return true;
    if (!IsBelow(step.extra, kNumElementwiseKind)) return false;
    const Operands operands = Of(static_cast<ElementwiseKind>(step.extra)).operands;
    return operands == Operands::kRepeated || operands == Operands::kForm;
  }

  bool IsElementwise(const Step& step) const {
    if (!IsBelow(step.index, kNumElementwiseKind) || !CanRead(step.a)) return false;
    const std::int64_t width = step.out.width;
    switch (Of(static_cast<ElementwiseKind>(step.index)).operands) {
      case Operands::kOne:
      case Operands::kRow:
        return step.a.width == width;
      case Operands::kRepeated:
        return CanRead(step.b) && step.b.width == width &&
               IsProduct(step.a.width, step.extra, width);
      case Operands::kThree:
        return CanRead(step.b) && CanRead(step.c) && step.a.width == width &&
               step.b.width == width && step.c.width == width;
      case Operands::kRuns:
      case Operands::kVectors:
        return IsProduct(width, step.extra, step.a.width);
      case Operands::kShares:
        return step.a.width == width && step.extra >= 0 && step.extra <= width &&
               width % std::max<std::int64_t>(step.extra, 1) == 0;
      case Operands::kLayers:
      case Operands::kGroups:
        return step.a.width == width && CanRead(step.b) && CanRead(step.c) &&
               step.b.width == step.c.width && width % step.b.width == 0;
      case Operands::kForm:
        return false;
    }
    return false;
  }

  static bool IsTriangle(std::int64_t num, std::int64_t width) {
    return num >= 2 && num <= 1 << 12 && num * (num - 1) / 2 == width;
  }

  static bool IsProduct(std::int64_t a, std::int64_t b, std::int64_t product) {
    return b >= 1 && b <= kMostWidth && a * b == product;
  }

  bool CanRead(const Place& place) const {
    if (!IsBelow(place.buffer, static_cast<std::int64_t>(program_.buffers.size()))) return false;
    const std::int64_t width = program_.buffers[static_cast<std::size_t>(place.buffer)].width;
    return place.width >= 1 && place.width <= width && place.column >= 0 &&
           place.column <= width - place.width;
  }

  const Program& program_;
  const std::int64_t num_inputs_, num_constants_;
};

}  // namespace

// Rows begin on cache lines, and lie no power of two apart.
std::int64_t ScratchWidth(std::int64_t width) { return (width + 15) / 16 * 16 + 16; }

std::string ReadProgram(const std::int64_t* numbers, std::int64_t count, std::int64_t num_inputs,
                        std::int64_t num_constants, Program* program) {
  if (count < kHeader || numbers[0] < kWithoutForms || numbers[0] > kProgramVersion ||
      (numbers[0] != kWithoutForms && count < kHeader + kMoreHeader)) {
    return "got numbers that are no program of version " + std::to_string(kProgramVersion);
  }
  const std::int64_t num_buffers = numbers[1], num_lookups = numbers[2], num_steps = numbers[3];
  const bool has_more = numbers[0] != kWithoutForms;
  const std::int64_t num_forms = has_more ? numbers[kHeader] : 0;
  const std::int64_t num_features = has_more ? numbers[kHeader + 1] : 0;
  const std::int64_t header = kHeader + (has_more ? kMoreHeader : 0);
  for (const std::int64_t some : {num_buffers, num_lookups, num_steps, num_forms, num_features}) {
    if (!IsBelow(some, kMostItems + 1)) return "got a count of " + std::to_string(some);
  }
  if ((numbers[0] == kWithoutPlaces && num_forms + num_features == 0) ||
      count != header + num_buffers * kNumbersOf<Buffer> + num_lookups * kNumbersOf<LookupSource> +
                   num_steps * kNumbersOf<Step> + num_features * kNumbersOf<FeatureSource> +
                   num_forms * kNumbersOf<Form>) {
    return "got " + std::to_string(count) + " numbers, which are not those of a program";
  }
  const std::int64_t* at = numbers + header;
  Take(&at, num_buffers, &program->buffers);
  Take(&at, num_lookups, &program->lookups);
  Take(&at, num_steps, &program->steps);
  Take(&at, num_features, &program->features);
  for (std::int64_t i = 0; i < num_forms; ++i) {
    if (at[i * kNumbersOf<Form>] >> 32 != 0) {
      return "got a wrong factor of form " + std::to_string(i);
    }
  }
  Take(&at, num_forms, &program->forms);
  return CheckProgram(num_inputs, num_constants, program);
}

std::string CheckProgram(std::int64_t num_inputs, std::int64_t num_constants, Program* program) {
  const std::vector<Buffer>& buffers = program->buffers;
  program->num_outputs = std::count_if(buffers.begin(), buffers.end(), [](const Buffer& buffer) {
    return buffer.kind == BufferKind::kOutput;
  });
  MeasureScratch(program);
  return Checking(*program, num_inputs, num_constants).Text();
}

void MeasureScratch(Program* program) {
  program->scratch_width = program->ids_width = 0;
  for (const Buffer& buffer : program->buffers) {
    // Perhaps not yet checked: neither number may make the sum overflow.
    const bool is_of_ids = buffer.kind == BufferKind::kIds;
    if ((buffer.kind == BufferKind::kScratch || is_of_ids) && IsBelow(buffer.index, kMostWidth) &&
        IsBelow(buffer.width, kMostWidth + 1)) {
      std::int64_t& width = is_of_ids ? program->ids_width : program->scratch_width;
      width = std::max(width, buffer.index + ScratchWidth(buffer.width));
    }
  }
  ChooseTiles({}, program);
}

}  // namespace recsys::ops
