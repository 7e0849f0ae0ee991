#ifndef RECSYS_OPS_TORCH_PROGRAM_GRAPH_H_
#define RECSYS_OPS_TORCH_PROGRAM_GRAPH_H_

#include <ATen/ATen.h>
#include <torch/csrc/jit/api/module.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ops/torch/program_call.h"

namespace recsys::ops {

/// Rows of one tensor by the numbers in another: index_select(rows, 0, index).
struct GatherStep {
  std::size_t rows = 0, index = 0;
  /// Whether programs alone read the result, which then is never made: they read `rows` in place.
  bool is_in_place = false;
};

/// A call of a function of TorchScript; `inputs` are places. It returns a tuple of tensors.
struct RegionStep {
  torch::jit::Module module;
  std::vector<std::size_t> inputs;
  std::size_t num_outputs = 0;
};

/// What a graph does in a step: a program, a region or, without these, a gather.
struct GraphStep {
  std::optional<ProgramStep> program;
  std::optional<RegionStep> region;
  GatherStep gather;
  /// The index of the gathers whose rows a program reads in place, if it reads some.
  std::size_t row_context = 0;
};

/// The shape of an input: [n], or [n, width] where the width is not 0, with n = size(of, 0) //
/// per_row * times.
struct ShapeCheck {
  std::size_t input = 0, of = 0;
  std::int64_t per_row = 1, times = 1, width = 0;
};

/// A graph that calls programs and regions, and gathers rows between them. Each tensor has a place:
/// the graph's inputs first, then the outputs of each step.
struct GraphParts {
  std::size_t num_inputs = 0;
  std::vector<ShapeCheck> checks;
  std::vector<GraphStep> steps;
  /// Names and places.
  std::vector<std::pair<std::string, std::size_t>> outputs;
};

/// A region that can be called from any number of threads.
class PreparedRegion {
 public:
  explicit PreparedRegion(const RegionStep& step);
  /// Appends its results to `places`.
  void Run(std::vector<at::Tensor>* places) const;

 private:
  torch::jit::ObjectPtr self_;
  torch::jit::Function* forward_;
  std::vector<std::size_t> inputs_;
  std::size_t num_outputs_;
};

/// A program over rows in memory. Threads may share it.
class ProgramGraph {
 public:
  using Outputs = std::vector<std::pair<std::string, at::Tensor>>;

  /// Throws for parts that do not fit each other; places are trusted. No gather is in place yet.
  explicit ProgramGraph(GraphParts parts);

  /// Runs the graph. Throws std::runtime_error for inputs that do not fit, and for IDs out of
  /// range.
  Outputs Run(const std::vector<at::Tensor>& inputs) const { return Run(inputs, nullptr); }

  /// Runs the graph with each program on this thread. Returns what its steps did, in their order.
  /// Throws as above.
  std::vector<StepTime> Profile(const std::vector<at::Tensor>& inputs) const;

 private:
  Outputs Run(const std::vector<at::Tensor>& inputs, std::vector<StepTime>* times) const;
  static void Check(const std::vector<at::Tensor>& inputs, const ShapeCheck& check);

  const GraphParts parts_;
  /// Those of the steps that are programs, in order.
  std::deque<PreparedProgram> programs_;
  /// Those of the steps that are regions, in order.
  std::vector<PreparedRegion> regions_;
};

}  // namespace recsys::ops

#endif  // RECSYS_OPS_TORCH_PROGRAM_GRAPH_H_
