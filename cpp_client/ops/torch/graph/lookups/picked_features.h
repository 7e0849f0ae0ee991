#ifndef RECSYS_OPS_TORCH_GRAPH_LOOKUPS_PICKED_FEATURES_H_
#define RECSYS_OPS_TORCH_GRAPH_LOOKUPS_PICKED_FEATURES_H_

#include <torch/csrc/jit/ir/ir.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace recsys::ops {

/// Lengths of bags, feature by feature, and of how many features.
struct Bags {
  torch::jit::Value* lengths = nullptr;
  std::int64_t num_features = 0;
};

/// Some features of others.
struct Picked {
  /// IDs or weights of the others; null where lengths are picked.
  torch::jit::Value* ids = nullptr;
  /// The bags of the others.
  Bags from;
  /// Which of them.
  std::vector<std::int64_t> features;
};

/// Returns what IDs or weights are picked from by one operator: FBGEMM's permutation, or a split
/// at the ends of features. Returns nothing for other values.
std::optional<Picked> PickedIds(torch::jit::Value* ids);

/// Returns which features of `from` others are; nothing if they are not made by picking some.
std::optional<std::vector<std::int64_t>> FeaturesOfBags(const Bags& bags, const Bags& from);

}  // namespace recsys::ops

#endif  // RECSYS_OPS_TORCH_GRAPH_LOOKUPS_PICKED_FEATURES_H_
