#ifndef RECSYS_OPS_TORCH_GRAPH_DIRECT_H_
#define RECSYS_OPS_TORCH_GRAPH_DIRECT_H_

#include <torch/csrc/jit/api/module.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/torch/plan_call.h"

namespace recsys::ops {

/// A graph that is one plan from its inputs to its outputs, called without TorchScript's
/// interpreter. Threads may share it.
class DirectGraph {
 public:
  using Outputs = std::vector<std::pair<std::string, at::Tensor>>;

  /// Returns null for a graph that does anything else. `frozen` has passed Exchange.
  static std::shared_ptr<DirectGraph> Of(const torch::jit::Module& frozen);

  /// Runs the graph. Throws std::runtime_error for inputs that do not fit, and for IDs out of
  /// range.
  Outputs Run(const std::vector<at::Tensor>& inputs) const;

 private:
  struct Parts;
  explicit DirectGraph(const Parts& parts);

  static bool Read(const torch::jit::Graph& graph, Parts* parts);

  const PreparedPlan plan_;
  const std::size_t num_inputs_;
  /// Which of the graph's inputs the plan takes, one after the other.
  const std::vector<std::size_t> inputs_;
  /// The names of outputs, and which of the plan's they are.
  const std::vector<std::pair<std::string, std::size_t>> outputs_;
};

}  // namespace recsys::ops

#endif  // RECSYS_OPS_TORCH_GRAPH_DIRECT_H_
