#ifndef RECSYS_OPS_TORCH_GRAPH_LOOKUPS_LOOKUP_IDS_H_
#define RECSYS_OPS_TORCH_GRAPH_LOOKUPS_LOOKUP_IDS_H_

#include <torch/csrc/jit/ir/ir.h>

#include <cstdint>
#include <vector>

namespace recsys::ops {

/// The IDs of one feature, as a lookup takes them.
struct TracedFeature {
  /// Which of the batch's.
  std::int64_t feature = 0;
  /// recsys::ops::Slot's, -1 for all that fit; modulus, negative where IDs are mixed first;
  /// last_id.
  std::int64_t num_rows = -1, modulus = 0, last_id = -1;
  /// The check that they pass on their way, and which of its features they are; null without one.
  torch::jit::Node* check = nullptr;
  std::int64_t checked_as = 0;
};

/// The IDs of some features of a batch.
struct TracedIds {
  /// The batch as it was before anything was picked, put in another order, split or checked.
  torch::jit::Value* values = nullptr;
  torch::jit::Value* lengths = nullptr;
  std::int64_t num_features = 0;
  std::vector<TracedFeature> features;
};

/// Returns where the IDs of `num_features` features come from: back through operators that only
/// pick features, and through the checks and policies of recsys.kernels.bounds. What does anything
/// else is taken as it is. `values`: [N], feature by feature; `lengths`: their bags.
TracedIds TraceIds(torch::jit::Value* values, torch::jit::Value* lengths,
                   std::int64_t num_features);

/// The same through checks and policies alone, for lookups that keep the order of their IDs.
TracedIds TraceChecked(torch::jit::Value* values, torch::jit::Value* lengths,
                       std::int64_t num_features);

/// Returns the weights of the batch, where `weights` has come the way of the IDs; null if not.
torch::jit::Value* TraceWeights(torch::jit::Value* weights, torch::jit::Value* lengths,
                                const TracedIds& ids);

/// Whether a node raises if anything is wrong about IDs.
bool IsCheck(const torch::jit::Node* node);

}  // namespace recsys::ops

#endif  // RECSYS_OPS_TORCH_GRAPH_LOOKUPS_LOOKUP_IDS_H_
