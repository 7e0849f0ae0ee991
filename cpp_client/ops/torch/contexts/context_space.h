#ifndef RECSYS_OPS_TORCH_CONTEXTS_CONTEXT_SPACE_H_
#define RECSYS_OPS_TORCH_CONTEXTS_CONTEXT_SPACE_H_

// Shape letter: Q contexts of a batch.

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ops/context_cache.h"
#include "ops/program/program.h"
#include "ops/torch/contexts/context_batch.h"

namespace recsys::ops {

/// The states of contexts that a plan is about to compute: those from which it goes on where their
/// bags have grown, and those that it writes for the next time.
class GrownContexts {
 public:
  GrownContexts(const Program& program, ContextCache* states, std::uint64_t owner)
      : program_(program), states_(states), owner_(owner) {}

  /// Finds the states of some contexts, by their places in the batch's keys.
  void Find(const ContextBatch& batch, const std::vector<std::size_t>& places);

  /// By context, for RunProgram.
  const GrownRow* rows() const { return rows_.data(); }

  /// Keeps the states that were written.
  void Keep(const ContextBatch& batch, const std::vector<std::size_t>& places);

 private:
  const Program& program_;
  ContextCache* const states_;
  const std::uint64_t owner_;
  std::optional<std::uint64_t> generation_;
  std::vector<GrownRow> rows_;
  std::vector<ContextCache::Values> before_;
  std::vector<std::shared_ptr<float[]>> written_;
};

struct GraphParts;

/// What a graph computes of contexts alone, so that it can be kept for the next batch.
struct ContextSpace {
  /// Values of contexts that other steps or the outputs read.
  struct Value {
    std::size_t place = 0;
    /// [Q, width], or [Q] where the width is 0.
    std::int64_t width = 0;

    /// Numbers of a context.
    std::int64_t count() const { return width == 0 ? 1 : width; }
  };

  /// By step, whether it computes values of contexts: a plan with a row for each context, which
  /// reads nothing else. A plan's rows do not depend on each other; what a region computes might.
  std::vector<bool> steps;
  std::vector<Value> values;
  /// Numbers of a context in all values together.
  std::int64_t num_values = 0;
  /// Whether a region reads one of the values: it may write to it.
  bool is_read_by_regions = false;
};

/// Finds what a graph computes of contexts. Throws for inputs that the graph does not have.
ContextSpace ContextSpaceOf(const GraphParts& parts, const ContextInputs& inputs);

/// Throws if values do not have a row for each of so many contexts.
void CheckContexts(const ContextSpace& space, const std::vector<at::Tensor>& places,
                   std::int64_t num_contexts);

/// Copies a context's row of each value behind each other.
ContextCache::Values CopyOfContext(const ContextSpace& space, const std::vector<at::Tensor>& places,
                                   std::int64_t row);

/// Writes values of contexts to their places in a graph.
void PlaceContexts(const ContextSpace& space, const std::vector<ContextCache::Values>& contexts,
                   std::vector<at::Tensor>* places);

}  // namespace recsys::ops

#endif  // RECSYS_OPS_TORCH_CONTEXTS_CONTEXT_SPACE_H_
