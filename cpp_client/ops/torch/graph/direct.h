#ifndef RECSYS_OPS_TORCH_GRAPH_DIRECT_H_
#define RECSYS_OPS_TORCH_GRAPH_DIRECT_H_

#include <torch/csrc/jit/api/module.h>

#include <cstdint>
#include <memory>
#include <optional>
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

  /// The plan with its constants, and what is between it and the graph.
  struct Parts {
    at::Tensor plan;
    std::vector<at::Tensor> constants;
    std::int64_t rows_of = 0, per_row = 0;
    std::vector<std::int64_t> widths;
    std::size_t num_inputs = 0;
    /// Which of the graph's inputs the plan takes, one after the other.
    std::vector<std::size_t> inputs;
    /// The names of outputs, and which of the plan's they are.
    std::vector<std::pair<std::string, std::size_t>> outputs;
  };

  /// Returns nothing for a graph that does anything else. `frozen` has passed Exchange.
  static std::optional<Parts> PartsOf(const torch::jit::Module& frozen);
  /// Returns null for a graph that does anything else.
  static std::shared_ptr<DirectGraph> Of(const torch::jit::Module& frozen);

  /// Throws for parts that do not fit each other; positions of inputs and outputs are trusted.
  explicit DirectGraph(const Parts& parts);

  /// Runs the graph. Throws std::runtime_error for inputs that do not fit, and for IDs out of
  /// range.
  Outputs Run(const std::vector<at::Tensor>& inputs) const;

 private:
  static bool Read(const torch::jit::Graph& graph, Parts* parts);

  const PreparedPlan plan_;
  const std::size_t num_inputs_;
  const std::vector<std::size_t> inputs_;
  const std::vector<std::pair<std::string, std::size_t>> outputs_;
};

}  // namespace recsys::ops

#endif  // RECSYS_OPS_TORCH_GRAPH_DIRECT_H_
