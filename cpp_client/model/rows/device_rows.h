#ifndef RECSYS_MODEL_ROWS_DEVICE_ROWS_H_
#define RECSYS_MODEL_ROWS_DEVICE_ROWS_H_

// The rows read by each rank's lookups (recsys/sharding/plan/device_rows.py). Shape letters: R
// rows.

#include <torch/types.h>

#include <vector>

#include "format/manifest/manifest.h"

namespace recsys {

/// The rows of one rank.
struct DeviceRows {
  at::Device device = at::kCPU;
  std::vector<RowBlock> blocks;
  /// uint8; ranks in host memory share one tensor.
  at::Tensor rows;
};

/// Returns a view of a block's rows, [num_rows, row_bytes].
at::Tensor RowsOfBlock(const at::Tensor& blob, const RowBlock& block);

/// Returns the part of whole rows [R, row_bytes] at alignment 1 that belongs to a block: its
/// columns, at its alignment, contiguous.
at::Tensor CutForBlock(const at::Tensor& rows, std::int64_t embedding_dim, const RowBlock& block);

/// Returns each rank's rows: the blob itself in host memory, a copy of the rank's shards elsewhere.
/// Throws Error (kManifest) if the plan names rows that do not exist.
std::vector<DeviceRows> RankRows(const Manifest& manifest, const Target& target,
                                 const at::Tensor& blob);

}  // namespace recsys

#endif  // RECSYS_MODEL_ROWS_DEVICE_ROWS_H_
