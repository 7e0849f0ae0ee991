#ifndef RECSYS_OPS_TORCH_GRAPH_DIRECT_H_
#define RECSYS_OPS_TORCH_GRAPH_DIRECT_H_

#include <torch/csrc/jit/api/module.h>

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/torch/graph/direct_parts.h"
#include "ops/torch/plan_call.h"

namespace recsys::ops {

/// A graph that is plans from its inputs to its outputs, called without TorchScript's interpreter.
/// Threads may share it.
class DirectGraph {
 public:
  using Outputs = std::vector<std::pair<std::string, at::Tensor>>;

  /// Returns null for a graph that does anything else. `frozen` has passed Exchange.
  static std::shared_ptr<DirectGraph> Of(const torch::jit::Module& frozen);

  /// Throws for parts that do not fit each other; places are trusted.
  explicit DirectGraph(DirectParts parts);

  /// Runs the graph. Throws std::runtime_error for inputs that do not fit, and for IDs out of
  /// range.
  Outputs Run(const std::vector<at::Tensor>& inputs) const;

 private:
  static void Check(const std::vector<at::Tensor>& inputs, const ShapeCheck& check);

  const DirectParts parts_;
  /// Of the steps that are plans.
  std::deque<PreparedPlan> plans_;
};

}  // namespace recsys::ops

#endif  // RECSYS_OPS_TORCH_GRAPH_DIRECT_H_
