#include "ops/torch/plan_call.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>

#include "ops/plan.h"
#include "ops/torch/lookup_call.h"
#include "ops/torch/operators.h"

namespace recsys::ops {
namespace {

/// Fewer tiles are not worth waking a thread for.
constexpr std::int64_t kTilesOfThread = 2;

/// A call's tensors, bound to its plan.
class PlanCall {
 public:
  PlanCall(const at::Tensor& plan, at::TensorList inputs, at::TensorList constants,
           std::int64_t num_rows, at::IntArrayRef widths)
      : inputs_(inputs), constants_(constants), num_rows_(num_rows) {
    TORCH_CHECK_TYPE(plan.scalar_type() == at::kLong && plan.dim() == 1 && plan.is_contiguous(),
                     "plan: got ", plan.scalar_type(), ' ', plan.sizes(), ", expected int64 [N]");
    const std::string error = ReadPlan(plan.const_data_ptr<std::int64_t>(), plan.numel(),
                                       static_cast<std::int64_t>(inputs.size()),
                                       static_cast<std::int64_t>(constants.size()), &plan_);
    TORCH_CHECK_VALUE(error.empty(), "plan: ", error);
    bound_.plan = &plan_;
    BindWeights();
    BindLookups();
    BindBuffers(widths);
    const std::string wrong = CheckBound(bound_);
    TORCH_CHECK_VALUE(wrong.empty(), "constants: ", wrong);
  }

  std::vector<at::Tensor> Run() {
    const Kernels& kernels = ChosenKernels();
    std::mutex mutex;
    WrongId wrong;
    const std::int64_t num_tiles = (num_rows_ + kPlanRows - 1) / kPlanRows;
    at::parallel_for(0, num_tiles, kTilesOfThread, [&](std::int64_t begin, std::int64_t end) {
      const WrongId found =
          RunPlan(bound_, kernels, begin * kPlanRows, std::min(end * kPlanRows, num_rows_));
      if (found.lookup < 0) return;
      const std::lock_guard<std::mutex> lock(mutex);
      wrong = found;
    });
    if (wrong.lookup >= 0) {
      calls_[static_cast<std::size_t>(wrong.lookup)].ThrowWrongId(wrong.position);
    }
    return std::move(outputs_);
  }

 private:
  void BindWeights() {
    bound_.weights.resize(constants_.size());
    for (const Step& step : plan_.steps) {
      if (step.kind != StepKind::kLinear) continue;
      held_.push_back(constants_[static_cast<std::size_t>(step.index)]);
      bound_.weights[static_cast<std::size_t>(step.index)] = WeightsOf(&held_.back());
    }
  }

  void BindLookups() {
    std::vector<std::int64_t> widths(plan_.lookups.size(), 1);
    for (const Step& step : plan_.steps) {
      if (step.kind == StepKind::kLookup) {
        widths[static_cast<std::size_t>(step.index)] = step.out.width;
      }
    }
    for (std::size_t i = 0; i < plan_.lookups.size(); ++i) {
      const LookupSource& from = plan_.lookups[i];
      calls_.emplace_back(LookupTensors{
          Constant(from.rows), Constant(from.slots), Input(from.lengths), Input(from.values),
          from.weights < 0 ? at::Tensor() : Input(from.weights), from.pooling, widths[i]});
      bound_.lookups.push_back(calls_.back().lookup());
      const std::int64_t num_bags = bound_.lookups.back().num_bags;
      TORCH_CHECK_VALUE(num_bags == num_rows_, "lengths: got ", num_bags, " rows, expected ",
                        num_rows_);
    }
  }

  void BindBuffers(at::IntArrayRef widths) {
    bound_.reads.resize(plan_.buffers.size());
    bound_.writes.resize(plan_.buffers.size());
    for (std::size_t i = 0; i < plan_.buffers.size(); ++i) {
      const Buffer& buffer = plan_.buffers[i];
      if (buffer.kind == BufferKind::kConstant) {
        const at::Tensor& numbers = Constant(buffer.index);
        TORCH_CHECK_VALUE(numbers.scalar_type() == at::kFloat && numbers.is_contiguous() &&
                              numbers.numel() == buffer.width,
                          "constants: expected ", buffer.width, " numbers in float32");
        // The same for every row.
        bound_.reads[i] = {numbers.const_data_ptr<float>(), 0};
      } else if (buffer.kind == BufferKind::kInput) {
        bound_.reads[i] = RowsOf(Input(buffer.index), buffer.width);
      }
    }
    TORCH_CHECK_VALUE(plan_.num_outputs == static_cast<std::int64_t>(widths.size()), "widths: got ",
                      widths.size(), ", expected ", plan_.num_outputs);
    for (const std::int64_t width : widths) {
      outputs_.push_back(width == 0 ? at::empty({num_rows_}, at::kFloat)
                                    : at::empty({num_rows_, width}, at::kFloat));
    }
    for (std::size_t i = 0; i < plan_.buffers.size(); ++i) {
      const Buffer& buffer = plan_.buffers[i];
      if (buffer.kind != BufferKind::kOutput) continue;
      const auto at = static_cast<std::size_t>(buffer.index);
      TORCH_CHECK_VALUE(buffer.width == std::max(widths[at], std::int64_t{1}), "widths: got ",
                        widths, ", which are not those of the plan");
      bound_.writes[i] = {outputs_[at].mutable_data_ptr<float>(), buffer.width};
    }
  }

  Rows RowsOf(const at::Tensor& input, std::int64_t width) {
    TORCH_CHECK_TYPE(input.scalar_type() == at::kFloat, "inputs: got ", input.scalar_type(),
                     ", expected float32");
    TORCH_CHECK_VALUE(
        input.numel() % width == 0 && (num_rows_ < 0 || input.numel() == num_rows_ * width),
        "inputs: got ", input.sizes(), ", expected ", width, " numbers for each of ", num_rows_,
        " rows");
    if (input.dim() == 2 && input.size(1) == width && input.stride(1) == 1 &&
        input.stride(0) >= 0) {
      return {input.const_data_ptr<float>(), input.stride(0)};
    }
    held_.push_back(input.reshape({num_rows_, width}).contiguous());
    return {held_.back().const_data_ptr<float>(), width};
  }

  const at::Tensor& Input(std::int64_t index) const {
    return inputs_[static_cast<std::size_t>(index)];
  }
  const at::Tensor& Constant(std::int64_t index) const {
    return constants_[static_cast<std::size_t>(index)];
  }

  const at::TensorList inputs_, constants_;
  Plan plan_;
  BoundPlan bound_;
  /// Their places in memory stay.
  std::deque<LookupCall> calls_;
  std::vector<at::Tensor> held_, outputs_;
  const std::int64_t num_rows_;
};

void CheckRowsOf(at::TensorList inputs, std::int64_t rows_of, std::int64_t per_row) {
  TORCH_CHECK_VALUE(rows_of >= 0 && rows_of < static_cast<std::int64_t>(inputs.size()),
                    "rows_of: got ", rows_of, ", expected one of ", inputs.size(), " inputs");
  TORCH_CHECK_VALUE(per_row >= 1, "per_row: got ", per_row, ", expected at least 1");
}

}  // namespace

std::vector<at::Tensor> CallPlan(const at::Tensor& plan, at::TensorList inputs,
                                 at::TensorList constants, std::int64_t rows_of,
                                 std::int64_t per_row, at::IntArrayRef widths) {
  CheckRowsOf(inputs, rows_of, per_row);
  const std::int64_t num_rows = inputs[static_cast<std::size_t>(rows_of)].numel() / per_row;
  return PlanCall(plan, inputs, constants, num_rows, widths).Run();
}

std::vector<at::Tensor> PlanShapes(const at::Tensor& plan, at::TensorList inputs,
                                   at::TensorList /*constants*/, std::int64_t rows_of,
                                   std::int64_t per_row, at::IntArrayRef widths) {
  CheckRowsOf(inputs, rows_of, per_row);
  const c10::SymInt num_rows = inputs[static_cast<std::size_t>(rows_of)].sym_numel() / per_row;
  std::vector<at::Tensor> outputs;
  for (const std::int64_t width : widths) {
    c10::SymDimVector shape{num_rows};
    if (width > 0) shape.push_back(width);
    outputs.push_back(at::empty_symint(shape, plan.options().dtype(at::kFloat)));
  }
  return outputs;
}

}  // namespace recsys::ops
