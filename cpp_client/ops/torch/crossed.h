#ifndef RECSYS_OPS_TORCH_CROSSED_H_
#define RECSYS_OPS_TORCH_CROSSED_H_

#include <ATen/ATen.h>

#include <cstdint>
#include <tuple>

namespace recsys::ops {

/// Returns the rows of combinations, and the lengths of their bags, [X * B] int64, 1 or 0
/// (recsys/modules/crosses.py): cross by cross, as keyed jagged tensors have them. `lengths`: of
/// num_features features, [F * B] int64; `values`: their raw IDs, [N] int64; `sizes`: how many
/// features each of X crosses has; `features`: which, those of all crosses one behind the other;
/// `num_rows`: the rows of each cross's table. Throws c10::Error for others.
std::tuple<at::Tensor, at::Tensor> CrossedRows(const at::Tensor& lengths, const at::Tensor& values,
                                               std::int64_t num_features, at::IntArrayRef sizes,
                                               at::IntArrayRef features, at::IntArrayRef num_rows);

}  // namespace recsys::ops

#endif  // RECSYS_OPS_TORCH_CROSSED_H_
