#ifndef RECSYS_OPS_TORCH_GRAPH_LOOKUP_IDS_H_
#define RECSYS_OPS_TORCH_GRAPH_LOOKUP_IDS_H_

#include <torch/csrc/jit/ir/ir.h>

#include <cstdint>
#include <vector>

namespace recsys::ops {

/// The IDs of a lookup in a graph, and what the graph does with them first.
struct LookupIds {
  /// As they are before the nodes below.
  torch::jit::Value* values = nullptr;
  /// Of each slot, int64 [S]: recsys::ops::Slot's num_rows, or -1 for all that fit; modulus;
  /// last_id.
  at::Tensor num_rows, moduli, last_ids;
  /// Checks that the lookup does itself.
  std::vector<torch::jit::Node*> checks;
};

/// Returns the IDs of FBGEMM's lookup. Checks and policies before it are left out of the graph
/// where they are those of recsys.kernels.bounds and nothing else reads what they make.
LookupIds IdsOf(torch::jit::Node* lookup, std::int64_t num_slots);

}  // namespace recsys::ops

#endif  // RECSYS_OPS_TORCH_GRAPH_LOOKUP_IDS_H_
