#ifndef RECSYS_OPS_TORCH_GRAPH_BATCH_SIZES_H_
#define RECSYS_OPS_TORCH_GRAPH_BATCH_SIZES_H_

#include <torch/csrc/jit/ir/ir.h>

#include <cstdint>
#include <optional>
#include <utility>

namespace recsys::ops {

/// What tells a B: a tensor, and how many of its numbers belong to a row.
using SizeSource = std::pair<const torch::jit::Value*, std::int64_t>;

/// Returns the source of a size that tells B: size(lengths, 0) // F.
std::optional<SizeSource> SourceOfSize(const torch::jit::Value* size);

/// A number that is so many times B.
struct RowMultiple {
  SizeSource of;
  std::int64_t count = 0;
};

/// Returns nothing for other numbers, and for 0.
std::optional<RowMultiple> RowMultipleOf(const torch::jit::Value* number);

/// lengths[begin * B : end * B].
struct SlicedBags {
  SizeSource of;
  std::int64_t begin = 0, end = 0;
};

/// Returns nothing for other values.
std::optional<SlicedBags> SlicedBagsOf(const torch::jit::Value* lengths);

}  // namespace recsys::ops

#endif  // RECSYS_OPS_TORCH_GRAPH_BATCH_SIZES_H_
