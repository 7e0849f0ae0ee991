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

#include "ops/torch/contexts/context_batch.h"
#include "ops/torch/contexts/context_space.h"
#include "ops/torch/program_call.h"
#include "recsys/model.h"

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
  /// Writes its results to `places`, from `first` on.
  void Run(std::size_t first, std::vector<at::Tensor>* places) const;

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

  /// `contexts`: of a ranking form. Throws for parts that do not fit each other; places are
  /// trusted. No gather is in place yet.
  explicit ProgramGraph(GraphParts parts, ContextInputs contexts = {});

  /// Runs the graph: for each of a batch's contexts that differ once, and not at all what a cache
  /// holds of them. `shared`: of inputs of one context, from which the graph takes what is there
  /// of it, and to which it adds the values otherwise; null for none. Throws std::runtime_error for
  /// inputs that do not fit, and for IDs out of range.
  Outputs Run(const std::vector<at::Tensor>& inputs, SharedContext* shared = nullptr) const;

  /// Runs all steps with each program on this thread. Returns what they did, in their order. Throws
  /// as above.
  std::vector<StepTime> Profile(const std::vector<at::Tensor>& inputs) const;

  /// Returns why a cache of contexts would hold nothing; empty if it would.
  std::string why_not_cached() const;

 private:
  /// Where a step writes, and what it runs: both null of a gather.
  struct PreparedStep {
    std::size_t first_place;
    const PreparedProgram* program;
    const PreparedRegion* region;
  };
  enum class Steps { kAll, kOfContexts, kOthers };

  /// Returns the places with the inputs, checked.
  std::vector<at::Tensor> PlacesOf(const std::vector<at::Tensor>& inputs) const;
  static void Check(const std::vector<at::Tensor>& inputs, const ShapeCheck& check);
  /// `grown`: by context, for the plan that goes on where bags grow.
  void RunSteps(Steps which, std::vector<at::Tensor>* places, std::vector<StepTime>* times,
                const GrownRow* grown = nullptr) const;
  void RunStep(std::size_t step, std::vector<at::Tensor>* places, std::vector<StepTime>* times,
               const GrownRow* grown) const;
  /// Runs the steps of contexts for some of a batch's keys.
  void ComputeContexts(const ContextBatch& batch, const std::vector<std::size_t>& keys,
                       std::vector<at::Tensor>* places) const;
  /// Writes what the graph computes of contexts alone to its places.
  void FillContexts(const ContextBatch& batch, std::vector<at::Tensor>* places) const;
  /// Adds the values of the only context.
  void Share(const std::vector<at::Tensor>& places, SharedContext* shared) const;
  Outputs OutputsOf(const std::vector<at::Tensor>& places) const;

  const GraphParts parts_;
  /// Its cache is null where nothing can be kept.
  ContextInputs contexts_;
  ContextSpace space_;
  /// Its number in the cache.
  std::uint64_t owner_ = 0;
  /// Those of the steps that are programs or regions; their places in memory stay.
  std::deque<PreparedProgram> programs_;
  std::deque<PreparedRegion> regions_;
  std::vector<PreparedStep> steps_;
  std::size_t num_places_ = 0;
  /// The step of contexts that goes on where bags grow, and the states that it goes on from.
  static constexpr std::size_t kNone = ~std::size_t{0};
  std::size_t growing_ = kNone;
  ContextCache* states_ = nullptr;
  std::uint64_t states_owner_ = 0;
};

}  // namespace recsys::ops

#endif  // RECSYS_OPS_TORCH_PROGRAM_GRAPH_H_
