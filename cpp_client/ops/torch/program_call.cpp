#include "ops/torch/program_call.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <string>

#include "ops/outside/outside_batch.h"
#include "ops/program/constant_steps.h"
#include "ops/torch/operators.h"

namespace recsys::ops {
namespace {

/// Fewer tiles are not worth waking a thread for.
constexpr std::int64_t kTilesOfThread = 2;

}  // namespace

bool IsReadBySteps(const Program& program, std::int64_t input) {
  const auto reads = [input](const auto& from) {
    return from.lengths == input || from.values == input;
  };
  const auto reads_more = [&](const LookupSource& from) {
    return reads(from) || from.weights == input;
  };
  return std::none_of(program.lookups.begin(), program.lookups.end(), reads_more) &&
         std::none_of(program.features.begin(), program.features.end(), reads);
}

PreparedProgram::PreparedProgram(const ProgramStep& step)
    : program_(step.program),
      constants_(step.constants),
      num_inputs_(static_cast<std::int64_t>(step.inputs.size())),
      rows_of_(step.rows_of),
      per_row_(step.per_row),
      widths_(step.widths),
      are_contexts_(step.are_contexts),
      outside_(step.outside) {
  TORCH_CHECK_VALUE(rows_of_ >= 0 && rows_of_ < num_inputs_, "rows_of: got ", rows_of_,
                    ", expected one of ", num_inputs_, " inputs");
  TORCH_CHECK_VALUE(per_row_ >= 1, "per_row: got ", per_row_, ", expected at least 1");
  TORCH_CHECK_VALUE(are_contexts_.empty() || are_contexts_.size() == step.inputs.size(),
                    "are_contexts: got ", are_contexts_.size(), ", expected ", num_inputs_);
  bound_.program = &program_;
  BindWeights();
  BindLookups();
  BindBuffers();
  const std::string wrong = CheckBound(bound_);
  TORCH_CHECK_VALUE(wrong.empty(), "constants: ", wrong);
  RunConstantSteps();
}

void PreparedProgram::RunConstantSteps() {
  const ConstantSteps once =
      TakeConstantSteps(static_cast<std::int64_t>(constants_.size()), &program_);
  if (once.buffers.empty()) return;
  BoundProgram bound;
  bound.program = &once.program;
  bound.reads = bound_.reads;
  bound.writes = bound_.writes;
  bound.weights = bound_.weights;
  for (const std::size_t at : once.buffers) {
    const std::int64_t width = program_.buffers[at].width;
    at::Tensor& numbers = constants_.emplace_back(at::zeros({width}, at::kFloat));
    bound.writes[at] = {numbers.mutable_data_ptr<float>(), width};
    bound_.reads[at] = {numbers.const_data_ptr<float>(), 0};
  }
  RunProgram(bound, ChosenKernels(), 0, 1);
  DropGrowingOfConstants(&program_);
  ChooseTiles(bound_.weights, &program_);
}

void PreparedProgram::BindWeights() {
  bound_.weights.resize(constants_.size());
  for (const Step& step : program_.steps) {
    if (step.kind != StepKind::kLinear) continue;
    const auto at = static_cast<std::size_t>(step.index);
    bound_.weights[at] = WeightsOf(&constants_[at]);
  }
  ChooseTiles(bound_.weights, &program_);
}

void PreparedProgram::BindLookups() {
  std::vector<std::int64_t> widths(program_.lookups.size(), 1);
  for (const Step& step : program_.steps) {
    if (IsLookup(step)) {
      widths[static_cast<std::size_t>(step.index)] = step.out.width;
    }
  }
  for (std::size_t i = 0; i < program_.lookups.size(); ++i) {
    const LookupSource& from = program_.lookups[i];
    const LookupSizes sizes{widths[i], from.num_features};
    const std::vector<Slot>& slots =
        tables_.emplace_back(Constant(from.rows), Constant(from.slots), sizes).slots();
    Lookup& lookup = bound_.lookups.emplace_back();
    lookup.slots = slots.data();
    lookup.num_slots = static_cast<std::int64_t>(slots.size());
    lookup.pooling = static_cast<Pooling>(from.pooling);
    // Weights of a sequence would be ignored.
    TORCH_CHECK_VALUE(lookup.pooling != Pooling::kNone || from.weights == -1,
                      "program: got weights of a sequence");
    BindOutside(i, Constant(from.rows));
    ids_of_lookups_.push_back(
        PositionOf({from.lengths, from.values, from.weights, from.num_features}));
  }
  for (const FeatureSource& from : program_.features) {
    ids_of_features_.push_back(PositionOf({from.lengths, from.values, -1, from.num_features}));
  }
  bound_.features.resize(program_.features.size());
}

void PreparedProgram::BindOutside(std::size_t lookup, const at::Tensor& rows) {
  if (outside_ == nullptr) return;
  const Lookup& of = bound_.lookups[lookup];
  const auto* const first = rows.const_data_ptr<std::uint8_t>();
  for (std::int64_t i = 0; i < of.num_slots; ++i) {
    const OutsideRows::Place place = outside_->Find(of.slots[i].rows - first);
    if (place.block >= 0) outside_slots_.push_back({lookup, static_cast<std::size_t>(i), place});
  }
}

std::size_t PreparedProgram::PositionOf(const IdInputs& ids) {
  const auto found = std::find(ids_.begin(), ids_.end(), ids);
  const auto position = static_cast<std::size_t>(found - ids_.begin());
  if (found == ids_.end()) ids_.push_back(ids);
  return position;
}

void PreparedProgram::BindBuffers() {
  TORCH_CHECK_VALUE(program_.num_outputs == static_cast<std::int64_t>(widths_.size()),
                    "widths: got ", widths_.size(), ", expected ", program_.num_outputs);
  bound_.reads.resize(program_.buffers.size());
  bound_.writes.resize(program_.buffers.size());
  for (std::size_t i = 0; i < program_.buffers.size(); ++i) {
    const Buffer& buffer = program_.buffers[i];
    if (buffer.kind == BufferKind::kConstant) {
      const at::Tensor& numbers = Constant(buffer.index);
      TORCH_CHECK_VALUE(numbers.scalar_type() == at::kFloat && numbers.is_contiguous() &&
                            numbers.numel() == buffer.width,
                        "constants: expected ", buffer.width, " numbers in float32");
      // The same for every row.
      bound_.reads[i] = {numbers.const_data_ptr<float>(), 0};
    } else if (buffer.kind == BufferKind::kOutput) {
      const std::int64_t width = widths_[static_cast<std::size_t>(buffer.index)];
      TORCH_CHECK_VALUE(buffer.width == std::max(width, std::int64_t{1}), "widths: got ",
                        at::IntArrayRef(widths_), ", which are not those of the program");
    } else if (buffer.kind == BufferKind::kInput && HasContexts(buffer.index)) {
      bound_.contexts.buffers.push_back(i);
    }
  }
}

class PreparedProgram::Call {
 public:
  Call(const PreparedProgram& prepared, at::TensorList inputs, const at::Tensor& row_context)
      : prepared_(prepared), inputs_(inputs), bound_(prepared.bound_) {
    TORCH_CHECK_VALUE(static_cast<std::int64_t>(inputs.size()) == prepared.num_inputs_,
                      "inputs: got ", inputs.size(), ", expected ", prepared.num_inputs_);
    const bool is_of_contexts = prepared.HasContexts(prepared.rows_of_);
    num_rows_ =
        is_of_contexts ? row_context.numel() : Input(prepared.rows_of_).numel() / prepared.per_row_;
    if (!bound_.contexts.buffers.empty()) {
      TORCH_CHECK_VALUE(row_context.numel() == num_rows_, "inputs: got contexts of ",
                        row_context.numel(), " rows, expected ", num_rows_);
      bound_.contexts.of_row = row_context.const_data_ptr<std::int64_t>();
    }
    BindLookups();
    BindBuffers();
    if (!prepared.outside_slots_.empty()) ReadOutside();
  }

  std::vector<at::Tensor> Run(const GrownRow* grown) {
    bound_.grown = grown;
    const Kernels& kernels = ChosenKernels();
    std::mutex mutex;
    WrongId wrong;
    const std::int64_t num_tiles = (num_rows_ + kProgramRows - 1) / kProgramRows;
    at::parallel_for(0, num_tiles, kTilesOfThread, [&](std::int64_t begin, std::int64_t end) {
      const WrongId found = RunProgram(bound_, kernels, begin * kProgramRows,
                                       std::min(end * kProgramRows, num_rows_));
      if (found.lookup < 0) return;
      const std::lock_guard<std::mutex> lock(mutex);
      wrong = found;
    });
    Check(wrong);
    return std::move(outputs_);
  }

  std::vector<at::Tensor> Profile(std::vector<StepTime>* times) {
    StepClock clock(*bound_.program);
    Check(RunProgram(bound_, ChosenKernels(), 0, num_rows_, &clock));
    for (StepTime& step : StepTimes(bound_, num_rows_, clock)) times->push_back(std::move(step));
    return std::move(outputs_);
  }

 private:
  void Check(const WrongId& wrong) const {
    if (wrong.lookup < 0) return;
    const auto at = static_cast<std::size_t>(wrong.lookup);
    ids_[prepared_.ids_of_lookups_[at]].ThrowWrongId(bound_.lookups[at], wrong.position);
  }

  void BindLookups() {
    for (const IdInputs& from : prepared_.ids_) {
      const BatchIds& ids = ids_.emplace_back(Input(from.lengths), Input(from.values),
                                              from.weights < 0 ? at::Tensor() : Input(from.weights),
                                              from.num_features);
      TORCH_CHECK_VALUE(ids.num_bags() == num_rows_, "lengths: got ", ids.num_bags(),
                        " rows, expected ", num_rows_);
    }
    for (std::size_t i = 0; i < bound_.lookups.size(); ++i) {
      ids_[prepared_.ids_of_lookups_[i]].BindTo(&bound_.lookups[i]);
    }
    for (std::size_t i = 0; i < bound_.features.size(); ++i) {
      const BatchIds& ids = ids_[prepared_.ids_of_features_[i]];
      bound_.features[i] = {ids.ids(), ids.OffsetsOfFeature(bound_.program->features[i].feature)};
    }
  }

  /// Reads the rows outside the process that the batch needs, each once, and lets lookups find
  /// them.
  void ReadOutside() {
    found_.resize(bound_.lookups.size());
    OutsideBatch batch;
    for (const OutsideSlot& of : prepared_.outside_slots_) {
      Lookup& lookup = bound_.lookups[of.lookup];
      FoundSlots& found = found_[of.lookup];
      const auto num_slots = static_cast<std::size_t>(lookup.num_slots);
      found.rows.resize(num_slots);
      found.of_slots.resize(num_slots);
      const std::int64_t wrong =
          batch.Add(lookup, lookup.slots[of.slot], of.place, &found.rows[of.slot]);
      if (wrong >= 0) Check({static_cast<std::int64_t>(of.lookup), wrong});
    }
    outside_rows_ = batch.Read(prepared_.outside_.get());
    for (const OutsideSlot& of : prepared_.outside_slots_) {
      FoundSlots& found = found_[of.lookup];
      found.of_slots[of.slot] = found.rows[of.slot].data();
      bound_.lookups[of.lookup].found = found.of_slots.data();
    }
  }

  void BindBuffers() {
    for (const std::int64_t width : prepared_.widths_) {
      outputs_.push_back(width == 0 ? at::empty({num_rows_}, at::kFloat)
                                    : at::empty({num_rows_, width}, at::kFloat));
    }
    const std::vector<Buffer>& buffers = bound_.program->buffers;
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      const Buffer& buffer = buffers[i];
      if (buffer.kind == BufferKind::kInput) {
        const at::Tensor& input = Input(buffer.index);
        const bool has_contexts = prepared_.HasContexts(buffer.index);
        bound_.reads[i] = RowsOf(input, has_contexts ? input.size(0) : num_rows_, buffer.width);
      } else if (buffer.kind == BufferKind::kOutput) {
        at::Tensor& output = outputs_[static_cast<std::size_t>(buffer.index)];
        bound_.writes[i] = {output.mutable_data_ptr<float>(), buffer.width};
      }
    }
  }

  Rows RowsOf(const at::Tensor& input, std::int64_t num_rows, std::int64_t width) {
    TORCH_CHECK_TYPE(input.scalar_type() == at::kFloat, "inputs: got ", input.scalar_type(),
                     ", expected float32");
    TORCH_CHECK_VALUE(input.numel() == num_rows * width, "inputs: got ", input.sizes(),
                      ", expected ", width, " numbers for each of ", num_rows, " rows");
    if (input.dim() == 2 && input.size(1) == width && input.stride(1) == 1 &&
        input.stride(0) >= 0) {
      return {input.const_data_ptr<float>(), input.stride(0)};
    }
    held_.push_back(input.reshape({num_rows, width}).contiguous());
    return {held_.back().const_data_ptr<float>(), width};
  }

  const at::Tensor& Input(std::int64_t index) const {
    return inputs_[static_cast<std::size_t>(index)];
  }

  const PreparedProgram& prepared_;
  const at::TensorList inputs_;
  BoundProgram bound_;
  std::int64_t num_rows_ = 0;
  /// Their places in memory stay.
  std::deque<BatchIds> ids_;
  std::vector<at::Tensor> held_, outputs_;
  /// By lookup: of slots with rows outside the process, where the row of each ID lies.
  struct FoundSlots {
    std::vector<OutsideBatch::Found> rows;
    std::vector<const std::uint8_t* const*> of_slots;
  };
  std::vector<FoundSlots> found_;
  std::vector<std::uint8_t> outside_rows_;
};

std::vector<at::Tensor> PreparedProgram::Run(at::TensorList inputs, const at::Tensor& row_context,
                                             const GrownRow* grown) const {
  return Call(*this, inputs, row_context).Run(grown);
}

std::vector<at::Tensor> PreparedProgram::Profile(at::TensorList inputs,
                                                 const at::Tensor& row_context,
                                                 std::vector<StepTime>* times) const {
  const auto start = StepClock::Clock::now();
  Call call(*this, inputs, row_context);
  StepTime& binding = times->emplace_back();
  binding.kind = "inputs";
  binding.time = StepClock::Clock::now() - start;
  return call.Profile(times);
}

namespace {

/// Larger tables would overflow sums of bytes.
constexpr std::int64_t kMostRows = std::int64_t{1} << 40, kMostDim = 1 << 20;

/// Writes the sums of the first 0, 1, ... lengths. Returns whether they are known to be right:
/// the lengths are so small that no sum overflows, and the last sum is the number of IDs.
bool SumSmall(const std::int64_t* lengths, std::int64_t count, std::int64_t num_ids,
              std::int64_t* to) {
  constexpr std::int64_t kSmall = std::int64_t{1} << 31;
  std::uint64_t sum = 0, all_bits = 0;
  *to++ = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto length = static_cast<std::uint64_t>(lengths[i]);
    all_bits |= length;
    sum += length;
    *to++ = static_cast<std::int64_t>(sum);
  }
  return all_bits < kSmall && count < kSmall && sum == static_cast<std::uint64_t>(num_ids);
}

}  // namespace

LookupTables::LookupTables(const at::Tensor& rows, const at::Tensor& slots,
                           const LookupSizes& sizes)
    : rows_(rows) {
  TORCH_CHECK_TYPE(rows.scalar_type() == at::kByte && rows.dim() == 1 && rows.is_contiguous(),
                   "rows: expected contiguous bytes");
  TORCH_CHECK_TYPE(slots.scalar_type() == at::kLong && slots.dim() == 2 &&
                       slots.size(1) == kSlotColumns && slots.is_contiguous() && slots.size(0) > 0,
                   "slots: got ", slots.scalar_type(), ' ', slots.sizes(), ", expected int64 [S, ",
                   kSlotColumns, ']');
  const std::int64_t* at = slots.const_data_ptr<std::int64_t>();
  slots_.resize(static_cast<std::size_t>(slots.size(0)));
  for (Slot& slot : slots_) {
    const std::int64_t offset = at[0], num_rows = at[1], type = at[2], dim = at[3], column = at[4];
    TORCH_CHECK_VALUE(
        type >= 0 && type <= 4 && dim >= 1 && dim <= sizes.width && dim <= kMostDim &&
            column >= 0 && column <= sizes.width - dim && offset >= 0 && offset <= rows.numel() &&
            at[5] >= -kMostRows && at[7] >= 0 && at[7] < sizes.num_features,
        "slots: got a type, dim, column, offset, modulus or feature out of its range");
    slot.type = static_cast<RowType>(type);
    const std::int64_t row_bytes = RowBytes(slot.type, dim), bytes = rows.numel() - offset;
    TORCH_CHECK_VALUE(num_rows < 0 || (num_rows <= kMostRows && num_rows * row_bytes <= bytes),
                      "slots: got ", num_rows, " rows of ", row_bytes, " bytes, expected at most ",
                      bytes / row_bytes);
    slot.rows = rows.const_data_ptr<std::uint8_t>() + offset;
    slot.num_rows = static_cast<std::uint64_t>(num_rows < 0 ? bytes / row_bytes : num_rows);
    slot.dim = dim;
    slot.column = column;
    slot.modulus = std::abs(at[5]);
    slot.is_mixed = at[5] < 0;
    slot.last_id = static_cast<std::uint64_t>(at[6]);
    slot.feature = at[7];
    at += kSlotColumns;
  }
}

BatchIds::BatchIds(const at::Tensor& lengths, const at::Tensor& values, const at::Tensor& weights,
                   std::int64_t num_features) {
  TORCH_CHECK_VALUE(num_features >= 1, "num_features: got ", num_features, ", expected at least 1");
  const bool is_whole = lengths.scalar_type() == at::kLong || lengths.scalar_type() == at::kInt;
  TORCH_CHECK_TYPE(
      is_whole && values.scalar_type() == at::kLong && lengths.dim() == 1 && values.dim() == 1,
      "lengths, values: got ", lengths.scalar_type(), ' ', lengths.sizes(), " and ",
      values.scalar_type(), ' ', values.sizes(), ", expected int64 [F * B] and [N]");
  TORCH_CHECK_VALUE(lengths.numel() % num_features == 0, "lengths: got ", lengths.numel(),
                    ", expected a multiple of ", num_features);
  num_bags_ = lengths.numel() / num_features;
  if (weights.defined()) {
    TORCH_CHECK_TYPE(
        weights.is_floating_point() && weights.dim() == 1 && weights.numel() == values.numel(),
        "weights: got ", weights.scalar_type(), ' ', weights.sizes(),
        ", expected floating-point numbers [", values.numel(), ']');
    weights_ = weights.to(at::kFloat).contiguous();
  }
  ids_ = values.contiguous();
  const bool is_read = lengths.scalar_type() == at::kLong && lengths.is_contiguous();
  ReadOffsets(is_read ? lengths : lengths.to(at::kLong).contiguous());
}

void BatchIds::ReadOffsets(const at::Tensor& lengths) {
  const std::int64_t num_ids = ids_.numel(), count = lengths.numel();
  const std::int64_t* const from = lengths.const_data_ptr<std::int64_t>();
  offsets_.resize(static_cast<std::size_t>(count) + 1);
  if (SumSmall(from, count, num_ids, offsets_.data())) return;
  std::int64_t sum = 0;
  std::int64_t* to = offsets_.data();
  *to++ = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    TORCH_CHECK(from[i] >= 0 && from[i] <= num_ids - sum, "lengths: got ", from[i], " at position ",
                i, " for ", num_ids, " values, expected their sum to be equal");
    *to++ = sum += from[i];
  }
  TORCH_CHECK(sum == num_ids, "lengths: got a sum of ", sum, " for ", num_ids,
              " values, expected them to be equal");
}

void BatchIds::BindTo(Lookup* lookup) const {
  lookup->num_bags = num_bags_;
  lookup->ids = ids_.const_data_ptr<std::int64_t>();
  lookup->offsets = offsets_.data();
  lookup->weights = weights_.defined() ? weights_.const_data_ptr<float>() : nullptr;
}

void BatchIds::ThrowWrongId(const Lookup& lookup, std::int64_t position) const {
  const std::int64_t id = lookup.ids[position];
  const std::int64_t bag =
      std::upper_bound(offsets_.begin(), offsets_.end(), position) - offsets_.begin() - 1;
  const std::int64_t feature = bag / num_bags_;
  const Slot* const wrong =
      std::find_if(lookup.slots, lookup.slots + lookup.num_slots, [&](const Slot& slot) {
        return slot.feature == feature && RowOfId(slot, id) >= slot.num_rows;
      });
  TORCH_CHECK(false, "values: got ID ", id, " for feature ", feature, ", expected 0 <= ID < ",
              wrong->num_rows);
}

}  // namespace recsys::ops
