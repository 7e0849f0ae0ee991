#ifndef RECSYS_OPS_TORCH_GRAPH_LOOKUPS_LOOKUPS_H_
#define RECSYS_OPS_TORCH_GRAPH_LOOKUPS_LOOKUPS_H_

#include <torch/csrc/jit/ir/ir.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "ops/torch/graph/lookups/lookup_ids.h"

namespace recsys::ops {

/// Exchanges the lookups of a frozen graph for those of recsys_ops, which check IDs and pick
/// features themselves.
class LookupExchange {
 public:
  explicit LookupExchange(std::shared_ptr<torch::jit::Graph> graph) : graph_(std::move(graph)) {}

  /// Exchanges a lookup of FBGEMM's. Returns why not; empty if it has.
  std::string Exchange(torch::jit::Node* node);

  /// Removes the checks that lookups do now, once all are exchanged.
  void RemoveChecks();

 private:
  std::string WhyNot(const torch::jit::Node* node) const;
  TracedIds IdsOf(torch::jit::Node* node, std::int64_t num_slots, torch::jit::Value** weights);
  bool IsDoneByLookups(torch::jit::Node* check) const;
  bool IsStructureDone(torch::jit::Node* check) const;

  const std::shared_ptr<torch::jit::Graph> graph_;
  /// Of each check, the features that lookups check now.
  std::map<torch::jit::Node*, std::set<std::int64_t>> checked_;
  /// The values and lengths that lookups read.
  std::set<std::pair<torch::jit::Value*, torch::jit::Value*>> read_;
};

}  // namespace recsys::ops

#endif  // RECSYS_OPS_TORCH_GRAPH_LOOKUPS_LOOKUPS_H_
