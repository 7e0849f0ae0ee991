#ifndef RECSYS_MODEL_DEVICE_ROWS_H_
#define RECSYS_MODEL_DEVICE_ROWS_H_

// The rows that each rank's lookups read (recsys/sharding/device_rows.py). Shape letters: R rows.

#include <torch/types.h>

#include <vector>

#include "check/files/manifest.h"

namespace recsys {

/// Where one rank's rows lie.
struct DeviceRows {
  at::Device device = at::kCPU;
  std::vector<RowBlock> blocks;
  /// uint8; ranks in host memory share one tensor.
  at::Tensor rows;
};

/// A view of a block's rows, [num_rows, row_bytes].
at::Tensor RowsOfBlock(const at::Tensor& blob, const RowBlock& block);

/// What a block holds of whole rows [R, row_bytes] at alignment 1: its columns, at its alignment,
/// contiguous.
at::Tensor CutForBlock(const at::Tensor& rows, std::int64_t embedding_dim, const RowBlock& block);

/// Each rank's rows: the blob itself in host memory, a copy of the rank's shards elsewhere.
/// Throws Error (kManifest) where the plan names what the rows lack.
std::vector<DeviceRows> RankRows(const Manifest& manifest, const Target& target,
                                 const at::Tensor& blob);

}  // namespace recsys

#endif  // RECSYS_MODEL_DEVICE_ROWS_H_
