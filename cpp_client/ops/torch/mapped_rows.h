#ifndef RECSYS_OPS_TORCH_MAPPED_ROWS_H_
#define RECSYS_OPS_TORCH_MAPPED_ROWS_H_

#include <ATen/ATen.h>

namespace recsys::ops {

/// Returns the row of each raw ID, [N] int64; -1 for those that own none
/// (recsys/managed/frozen.py). `slots`: [Q, 8] int64, the buckets of all tables; `masks`, `starts`:
/// [T] int64, the number of buckets of each table less one, and its first bucket; `tables`: [N]
/// int64, that of each ID; `ids`: [N] int64. Throws c10::Error for others.
at::Tensor MappedRows(const at::Tensor& slots, const at::Tensor& masks, const at::Tensor& starts,
                      const at::Tensor& tables, const at::Tensor& ids);

}  // namespace recsys::ops

#endif  // RECSYS_OPS_TORCH_MAPPED_ROWS_H_
