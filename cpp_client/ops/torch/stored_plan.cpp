#include "ops/torch/stored_plan.h"

#include <cstring>
#include <utility>

#include "ops/packed.h"
#include "ops/plan.h"
#include "ops/torch/dtypes.h"
#include "ops/torch/operators.h"
#include "recsys/error.h"

namespace recsys::ops {
namespace {

/// Returns a plan whose interactions multiply in a type. Throws for numbers that are no plan.
at::Tensor WithDots(const at::Tensor& numbers, std::int64_t num_inputs, std::int64_t num_constants,
                    WeightType type) {
  Plan plan;
  const std::string error = ReadPlan(numbers.const_data_ptr<std::int64_t>(), numbers.numel(),
                                     num_inputs, num_constants, &plan);
  TORCH_CHECK(error.empty(), error);
  for (Step& step : plan.steps) {
    if (step.kind == StepKind::kDot) step.index = static_cast<std::int64_t>(type);
  }
  return at::tensor(WritePlan(plan), at::kLong);
}

}  // namespace

StoredPlan::StoredPlan(std::string bytes) : bytes_(std::move(bytes)), file_(ReadPlanFile(bytes_)) {
  RegisterOperators();
}

at::Tensor StoredPlan::TensorOf(const FileTensor& tensor) const {
  at::Tensor made = at::empty(tensor.shape, ScalarTypeOf(tensor.dtype));
  std::memcpy(made.mutable_data_ptr(), bytes_.data() + tensor.offset, tensor.num_bytes);
  return made;
}

at::Tensor StoredPlan::ConstantOf(const PlanConstant& constant, const at::Tensor& rows,
                                  const Weights& weights, const std::string& linear_dtype) const {
  const auto weight_at = [&](const std::string& path) {
    const FileTensor& stored = file_.weights.at(path);
    const auto found = weights.find(path);
    if (found == weights.end()) return TensorOf(stored);
    TORCH_CHECK(found->second.scalar_type() == ScalarTypeOf(stored.dtype) &&
                    found->second.sizes() == at::IntArrayRef(stored.shape),
                "dense weight ", path, ": got ", found->second.scalar_type(), ' ',
                found->second.sizes(), ", expected ", stored.dtype, ' ',
                at::IntArrayRef(stored.shape));
    return found->second;
  };
  switch (constant.kind) {
    case PlanConstant::Kind::kRows:
      return rows;
    case PlanConstant::Kind::kTensor:
      return TensorOf(file_.tensors.at(constant.name));
    case PlanConstant::Kind::kWeight:
      return weight_at(constant.name);
    case PlanConstant::Kind::kLayer:
      break;
  }
  const at::Tensor weight = weight_at(constant.name);
  c10::optional<at::Tensor> bias;
  if (!constant.bias.empty()) bias = weight_at(constant.bias).reshape({-1});
  TORCH_CHECK(weight.scalar_type() == at::kFloat && weight.dim() == 2 &&
                  IsPackable(weight.size(0), weight.size(1)) &&
                  weight.isfinite().all().item<bool>(),
              "dense weight ", constant.name, ": got ", weight.scalar_type(), ' ', weight.sizes(),
              ", expected finite float32 of a linear layer");
  TORCH_CHECK(!bias || (bias->scalar_type() == at::kFloat && bias->size(0) == weight.size(0)),
              "dense weight ", constant.bias, ": expected float32 [", weight.size(0), ']');
  return PackWeights(weight, bias, linear_dtype);
}

std::shared_ptr<DirectGraph> StoredPlan::Bind(const at::Tensor& rows, const Weights& weights,
                                              const std::string& linear_dtype) const try {
  DirectParts parts;
  parts.num_inputs = static_cast<std::size_t>(file_.num_inputs);
  for (const FileCheck& check : file_.checks) {
    parts.checks.push_back({static_cast<std::size_t>(check.input),
                            static_cast<std::size_t>(check.of), check.per_row, check.times,
                            check.width});
  }
  for (const FileStep& step : file_.steps) {
    DirectStep& made = parts.steps.emplace_back();
    if (!step.is_plan) {
      made.gather = {static_cast<std::size_t>(step.rows), static_cast<std::size_t>(step.index)};
      continue;
    }
    PlanStep& plan = made.plan.emplace();
    plan.plan = WithDots(TensorOf(file_.tensors.at(step.plan)),
                         static_cast<std::int64_t>(step.inputs.size()),
                         static_cast<std::int64_t>(step.constants.size()), DotTypeOf(linear_dtype));
    for (const PlanConstant& constant : step.constants) {
      plan.constants.push_back(ConstantOf(constant, rows, weights, linear_dtype));
    }
    plan.inputs.assign(step.inputs.begin(), step.inputs.end());
    plan.rows_of = step.rows_of;
    plan.per_row = step.per_row;
    plan.widths = step.widths;
  }
  for (const auto& [name, place] : file_.outputs) {
    parts.outputs.emplace_back(name, static_cast<std::size_t>(place));
  }
  return std::make_shared<DirectGraph>(std::move(parts));
} catch (const c10::Error& error) {
  throw recsys::Error(ErrorKind::kManifest,
                      std::string("operators: ") + error.what_without_backtrace());
}

}  // namespace recsys::ops
