#include <algorithm>
#include <array>
#include <cstring>

#include "ops/program/bags/places.h"
#include "ops/program/contexts.h"
#include "ops/program/program.h"
#include "ops/program/row_steps.h"
#include "ops/scratch.h"

namespace recsys::ops {
namespace {

/// Rows that are fetched ahead for a tile; more would leave the cache before they are read.
constexpr std::int64_t kMostAhead = 4096;
/// Rows that are fetched at a time: more would wait for each other.
constexpr std::int64_t kMostAtOnce = 8;

/// Where the rows of a tile's IDs lie.
struct FoundRows {
  std::vector<const std::uint8_t*> rows;
  /// Where those of each lookup begin.
  std::vector<std::int64_t> starts;

  std::int64_t count() const { return static_cast<std::int64_t>(rows.size()) - kRowsAhead; }
};

/// Runs a program, one tile of rows after the other. The rows that a tile looks up are fetched
/// while linear layers of the tile before it, and its own ahead of the lookup, are computed.
/// kIsTimed: whether there is a clock.
template <bool kIsTimed>
class Tiles {
 public:
  Tiles(const BoundProgram& bound, const Kernels& kernels, FoundRows* found, FoundRows* next,
        StepClock* clock)
      : bound_(bound),
        kernels_(kernels),
        found_(found),
        next_(next),
        clock_(clock),
        contexts_(bound),
        tile_rows_(bound.program->tile_rows),
        late_(bound.program->late),
        most_late_(kProgramRows / tile_rows_ * tile_rows_) {
    const std::vector<Step>& steps = bound.program->steps;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (IsLookup(steps[i])) last_lookup_ = static_cast<std::int64_t>(i);
    }
  }

  WrongId Run(std::int64_t first, std::int64_t end) {
    if constexpr (kIsTimed) clock_->Start();
    num_next_ = contexts_.TileFrom(first, end);
    const WrongId wrong = Find(first, num_next_, next_);
    if (wrong.lookup >= 0) return wrong;
    FetchNext(num_next_, false);
    if (last_lookup_ >= 0) Lap(static_cast<std::size_t>(last_lookup_), 0);
    for (; first < end; first += num_rows_) {
      const WrongId found = RunTile(first, end);
      if (found.lookup >= 0) return found;
    }
    return {};
  }

 private:
  WrongId RunTile(std::int64_t first, std::int64_t end) {
    first_ = first;
    count_ = num_rows_ = num_next_;
    num_next_ = contexts_.TileFrom(first + num_rows_, end);
    FindContexts();
    std::swap(found_, next_);
    scratch_ = reinterpret_cast<float*>(
        ScratchOf(Scratch::kBuffers,
                  bound_.program->scratch_width * num_rows_ * std::int64_t{sizeof(float)}));
    if (late_.any() && num_late_ == 0) {
      first_late_ = first;
      late_scratch_ = reinterpret_cast<float*>(
          ScratchOf(Scratch::kLateBuffers, late_.width * most_late_ * std::int64_t{sizeof(float)}));
    }
    if (bound_.grown != nullptr) ReadStates();
    std::size_t num_led = 0;
    const std::vector<Step>& steps = bound_.program->steps;
    const std::size_t num_steps =
        late_.any() ? static_cast<std::size_t>(late_.first) : steps.size();
    for (std::size_t i = 0; i < num_steps; ++i) {
      const auto begin = static_cast<std::int64_t>(i);
      if (steps[i].kind == StepKind::kEachId) {
        RunEachId(i);
        // Behind the last of its steps.
        i += static_cast<std::size_t>(steps[i].index);
      } else if (LeadsPlaces(steps[i])) {
        const double work = RunPlaces(steps[i], steps[i + 1], num_led++);
        // Its own time is none.
        Lap(++i, num_rows_, work);
      } else {
        Run(steps[i]);
        Lap(i, num_rows_);
      }
      const bool has_read = last_lookup_ >= begin && last_lookup_ <= static_cast<std::int64_t>(i);
      if (!has_read || num_next_ == 0) continue;
      const WrongId wrong = Find(first + num_rows_, num_next_, next_);
      if (wrong.lookup >= 0) return wrong;
      FetchNext(num_rows_, true);
      Lap(static_cast<std::size_t>(last_lookup_), 0);
    }
    if (bound_.grown != nullptr) WriteStates();
    if (!late_.any()) return {};
    num_late_ += num_rows_;
    if (num_next_ == 0 || num_late_ + num_next_ > most_late_) RunLate();
    return {};
  }

  /// Calls `copy` with the row of each kept buffer, and how many numbers belong to so many IDs.
  template <typename Copy>
  void ForKept(std::int64_t row, std::int64_t num_ids, Copy copy) const {
    for (const Growing::Kept& kept : bound_.program->growing.kept) {
      const std::int64_t width =
          bound_.program->buffers[static_cast<std::size_t>(kept.buffer)].width;
      const OutRows rows = Write({kept.buffer, 0, width});
      copy(rows.data + row * rows.stride, kept.each > 0 ? num_ids * kept.each : width);
    }
  }

  void ReadStates() const {
    for (std::int64_t row = 0; row < num_rows_; ++row) {
      const GrownRow& grown = bound_.grown[first_ + row];
      if (grown.before == nullptr) continue;
      const float* from = grown.before;
      ForKept(row, grown.num_before, [&](float* to, std::int64_t count) {
        std::copy_n(from, count, to);
        from += count;
      });
    }
  }

  void WriteStates() const {
    for (std::int64_t row = 0; row < num_rows_; ++row) {
      const GrownRow& grown = bound_.grown[first_ + row];
      if (grown.state == nullptr) continue;
      float* to = grown.state;
      ForKept(row, grown.num_ids,
              [&](const float* from, std::int64_t count) { to = std::copy_n(from, count, to); });
    }
  }

  /// Runs the late steps for the rows of the tiles since the last time.
  void RunLate() {
    first_ = first_late_;
    count_ = num_late_;
    FindContexts();
    const std::vector<Step>& steps = bound_.program->steps;
    for (auto i = static_cast<std::size_t>(late_.first); i < steps.size(); ++i) {
      Run(steps[i]);
      Lap(i, count_);
    }
    num_late_ = 0;
  }

  /// Finds the rows of contexts that steps read.
  void FindContexts() {
    if (!contexts_.any()) return;
    [[maybe_unused]] const std::int64_t num_copied = contexts_.Find(first_, count_);
    if constexpr (kIsTimed) clock_->LapCopies(num_copied);
  }

  void Lap(std::size_t step, std::int64_t num_rows) {
    Lap(step, num_rows, static_cast<double>(num_rows));
  }
  void Lap([[maybe_unused]] std::size_t step, [[maybe_unused]] std::int64_t num_rows,
           [[maybe_unused]] double work) {
    if constexpr (kIsTimed) clock_->Lap(step, num_rows, work);
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
      const Lookup part = PartOf(bound_.lookups[i], first, num_rows);
      const std::uint8_t** const to = found->rows.data() + found->starts[i];
      const std::int64_t wrong =
          part.found == nullptr ? kernels_.find(part, to) : FindApart(kernels_, part, to);
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
    const std::vector<Step>& steps = bound_.program->steps;
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

  /// Runs the steps behind one for the IDs of all rows, one tile after the other.
  void RunEachId(std::size_t at) {
    const std::vector<Step>& steps = bound_.program->steps;
    const Step& each = steps[at];
    const bool is_all = each.a.width == 0;
    const Rows lengths = is_all ? Rows() : Read(each.a);
    const std::int64_t* const offsets =
        is_all ? bound_.features[static_cast<std::size_t>(each.extra)].offsets + first_ : nullptr;
    const std::int64_t tile_ids = bound_.program->tile_ids;
    ids_scratch_ = reinterpret_cast<float*>(ScratchOf(
        Scratch::kIdBuffers, bound_.program->ids_width * tile_ids * std::int64_t{sizeof(float)}));
    const auto run = [&] {
      Lap(at, 0);
      for (std::size_t i = at + 1; i <= at + static_cast<std::size_t>(each.index); ++i) {
        Run(steps[i]);
        Lap(i, count_);
      }
      num_ids_run_ += count_;
      count_ = 0;
    };
    count_ = num_ids_run_ = 0;
    for (std::int64_t row = 0; row < num_rows_; ++row) {
      const std::int64_t num_ids = is_all
                                       ? offsets[row + 1] - offsets[row]
                                       : NumIdsOf(lengths.data[row * lengths.stride], each.extra);
      for (std::int64_t place = 0; place < num_ids; ++place) {
        id_at_[static_cast<std::size_t>(count_++)] = {row, place};
        if (count_ == tile_ids) run();
      }
    }
    if (count_ > 0) run();
    count_ = num_rows_;
    Lap(at, num_rows_);
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
        return RunLinear(step, out);
      case StepKind::kDot:
        return kernels_.dot(static_cast<WeightType>(step.index), Read(step.a), count_,
                            {step.a.width / step.extra, step.extra}, out);
      case StepKind::kElementwise:
        return kernels_.elementwise(ElementwiseOf(step), out);
      case StepKind::kContract:
        return kernels_.contract(FormedOf(step, ElementwiseKind::kCopy), out);
      case StepKind::kBroadcast:
        return kernels_.broadcast(FormedOf(step, static_cast<ElementwiseKind>(step.extra)), out);
      case StepKind::kSequence: {
        const auto at = static_cast<std::size_t>(step.index);
        return ReadSequences(kernels_, PartOf(bound_.lookups[at], first_, num_rows_),
                             found_->rows.data() + found_->starts[at], step, out);
      }
      case StepKind::kLength:
        return ReadLengths(FeatureOf(step), first_, num_rows_, out);
      case StepKind::kDifferences:
        return ReadDifferences(FeatureOf(step), first_, num_rows_, step.extra, out);
      case StepKind::kTake:
        return TakeVectors(step, Read(step.a), Read(step.b), count_, out);
      case StepKind::kToIds:
        return ReadToIds(step, Read(step.a), id_at_.data(), count_, out);
      case StepKind::kFromIds:
        return WriteFromIds(step, Read(step.a), id_at_.data(), count_, out);
      case StepKind::kSumIds:
        return AddFromIds(step, Read(step.a), id_at_.data(), count_, out);
      case StepKind::kReadIds: {
        const auto at = static_cast<std::size_t>(step.index);
        return ReadIds(kernels_, bound_.lookups[at],
                       found_->rows.data() + found_->starts[at] + num_ids_run_, count_, out);
      }
      case StepKind::kEachId:
      case StepKind::kFirst:
      case StepKind::kFirstPairs:
        return;
    }
  }

  /// Runs a step row by row, for as many places as each has. Returns how many whole rows that is.
  /// `number`: of the leading step among those.
  double RunPlaces(const Step& leading, const Step& step, std::size_t number) {
    double work = 0;
    const std::int64_t loop = bound_.grown != nullptr ? bound_.program->growing.loops[number] : -1;
    const Rows lengths = Read(leading.a);
    const OutRows out = Write(step.out);
    const auto row_of = [](Rows rows, std::int64_t row) {
      return Rows{rows.data + row * rows.stride, rows.stride};
    };
    for (std::int64_t row = 0; row < count_; ++row) {
      const std::int64_t count = NumIdsOf(lengths.data[row * lengths.stride], leading.extra);
      const OutRows to = {out.data + row * out.stride, out.stride};
      const std::int64_t begin = loop < 0 ? 0 : std::min(bound_.grown[first_ + row].begin, count);
      const FirstPlaces places{leading, count, begin, loop};
      work += ShareOf(leading, step, count);
      if (step.kind == StepKind::kLinear) {
        const Packed& weights = bound_.weights[static_cast<std::size_t>(step.index)];
        const std::int64_t of_place = leading.index / weights.num_outputs;
        const std::int64_t num_vectors = (count - begin) * of_place, skipped = begin * of_place;
        if (num_vectors == 0) continue;
        kernels_.linear(
            weights,
            {row_of(Read(step.a), row).data + skipped * weights.num_inputs, weights.num_inputs},
            num_vectors, static_cast<Activation>(step.extra),
            {to.data + skipped * weights.num_outputs, weights.num_outputs}, &ahead_);
      } else if (step.kind == StepKind::kElementwise) {
        Elementwise of_row = ElementwiseOf(step);
        of_row.a = row_of(of_row.a, row);
        of_row.b = row_of(of_row.b, row);
        of_row.c = row_of(of_row.c, row);
        ElementwiseOfPlaces(kernels_, places, of_row, to);
      } else {
        const bool is_sum = step.kind == StepKind::kContract;
        Formed of_row = FormedOf(
            step, is_sum ? ElementwiseKind::kCopy : static_cast<ElementwiseKind>(step.extra));
        of_row.a = row_of(of_row.a, row);
        of_row.b = row_of(of_row.b, row);
        of_row.num_rows = 1;
        FormOfPlaces(places, is_sum ? kernels_.contract : kernels_.broadcast, of_row, to);
      }
    }
    return work;
  }

  const FeatureIds& FeatureOf(const Step& step) const {
    return bound_.features[static_cast<std::size_t>(step.index)];
  }

  Formed FormedOf(const Step& step, ElementwiseKind kind) const {
    const Form& form = bound_.program->forms[static_cast<std::size_t>(step.index)];
    return {&form, kind, Read(step.a), step.b.width > 0 ? Read(step.b) : Read(step.a), count_};
  }

  /// A row may have several vectors, which a layer takes as rows.
  void RunLinear(const Step& step, OutRows out) {
    const Packed& weights = bound_.weights[static_cast<std::size_t>(step.index)];
    const auto activation = static_cast<Activation>(step.extra);
    const Rows in = Read(step.a);
    const std::int64_t num_vectors = step.a.width / weights.num_inputs;
    if (num_vectors == 1) {
      return kernels_.linear(weights, in, count_, activation, out, &ahead_);
    }
    for (std::int64_t row = 0; row < count_; ++row) {
      kernels_.linear(weights, {in.data + row * in.stride, weights.num_inputs}, num_vectors,
                      activation, {out.data + row * out.stride, weights.num_outputs}, &ahead_);
    }
  }

  Elementwise ElementwiseOf(const Step& step) const {
    Elementwise made;
    made.kind = static_cast<ElementwiseKind>(step.index);
    made.a = Read(step.a);
    made.b = step.b.width > 0 ? Read(step.b) : made.a;
    made.c = step.c.width > 0 ? Read(step.c) : made.a;
    made.num_rows = count_;
    made.width = step.out.width;
    const KindOfNumbers& kind = Of(made.kind);
    if (kind.operands == Operands::kLayers || kind.operands == Operands::kGroups) {
      made.count = step.b.width;
    }
    if (kind.takes_factor) {
      std::memcpy(&made.factor, &step.extra, sizeof(made.factor));
    } else {
      made.count = step.extra;
    }
    return made;
  }

  OutRows Write(const Place& place) const {
    const Buffer& buffer = bound_.program->buffers[static_cast<std::size_t>(place.buffer)];
    if (buffer.kind == BufferKind::kScratch) {
      const std::int64_t stride = ScratchWidth(buffer.width);
      const std::int64_t late =
          late_.any() ? late_.index[static_cast<std::size_t>(place.buffer)] : -1;
      if (late >= 0) {
        const std::int64_t row = first_ - first_late_;
        return {late_scratch_ + late * most_late_ + row * stride + place.column, stride};
      }
      return {scratch_ + buffer.index * num_rows_ + place.column, stride};
    }
    if (buffer.kind == BufferKind::kIds) {
      return {ids_scratch_ + buffer.index * count_ + place.column, ScratchWidth(buffer.width)};
    }
    const OutRows rows = bound_.writes[static_cast<std::size_t>(place.buffer)];
    return {rows.data + first_ * rows.stride + place.column, rows.stride};
  }

  Rows Read(const Place& place) const {
    const Buffer& buffer = bound_.program->buffers[static_cast<std::size_t>(place.buffer)];
    if (buffer.kind != BufferKind::kInput && buffer.kind != BufferKind::kConstant) {
      const OutRows rows = Write(place);
      return {rows.data, rows.stride};
    }
    if (const Rows* const shared = contexts_.Of(place.buffer)) {
      return {shared->data + place.column, shared->stride};
    }
    const Rows rows = bound_.reads[static_cast<std::size_t>(place.buffer)];
    return {rows.data + first_ * rows.stride + place.column, rows.stride};
  }

  const BoundProgram& bound_;
  const Kernels& kernels_;
  FoundRows *found_, *next_;
  StepClock* const clock_;
  ContextRows contexts_;
  const std::int64_t tile_rows_;
  const LateSteps& late_;
  /// Rows that pass the late steps together, and those that wait for them.
  const std::int64_t most_late_;
  std::int64_t first_late_ = 0, num_late_ = 0;
  std::int64_t last_lookup_ = -1;
  Ahead ahead_;
  /// Those of the tile, and how many of the next one.
  std::int64_t first_ = 0, num_rows_ = 0, num_next_ = 0;
  /// Rows, or IDs, that a step takes.
  std::int64_t count_ = 0;
  /// IDs of the tile for which steps have run before.
  std::int64_t num_ids_run_ = 0;
  std::array<IdAt, kProgramRows> id_at_;
  float *scratch_ = nullptr, *ids_scratch_ = nullptr, *late_scratch_ = nullptr;
};

}  // namespace

WrongId RunProgram(const BoundProgram& bound, const Kernels& kernels, std::int64_t first,
                   std::int64_t end, StepClock* clock) {
  thread_local FoundRows found, next;
  if (clock == nullptr) {
    return Tiles<false>(bound, kernels, &found, &next, nullptr).Run(first, end);
  }
  return Tiles<true>(bound, kernels, &found, &next, clock).Run(first, end);
}

}  // namespace recsys::ops
