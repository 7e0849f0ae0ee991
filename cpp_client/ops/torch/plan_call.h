#ifndef RECSYS_OPS_TORCH_PLAN_CALL_H_
#define RECSYS_OPS_TORCH_PLAN_CALL_H_

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

namespace recsys::ops {

/// Runs a plan, the numbers of ops/plan.h: its steps over the rows of a batch, as one operator.
/// inputs[rows_of] has per_row numbers for each row. Returns the outputs, [B, width] each, or [B]
/// where the width is 0.
std::vector<at::Tensor> CallPlan(const at::Tensor& plan, at::TensorList inputs,
                                 at::TensorList constants, std::int64_t rows_of,
                                 std::int64_t per_row, at::IntArrayRef widths);

/// Returns outputs of these shapes without numbers.
std::vector<at::Tensor> PlanShapes(const at::Tensor& plan, at::TensorList inputs,
                                   at::TensorList constants, std::int64_t rows_of,
                                   std::int64_t per_row, at::IntArrayRef widths);

}  // namespace recsys::ops

#endif  // RECSYS_OPS_TORCH_PLAN_CALL_H_
