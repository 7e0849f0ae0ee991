#ifndef RECSYS_OPS_TORCH_CONTEXTS_GROWN_CONTEXTS_H_
#define RECSYS_OPS_TORCH_CONTEXTS_GROWN_CONTEXTS_H_

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

}  // namespace recsys::ops

#endif  // RECSYS_OPS_TORCH_CONTEXTS_GROWN_CONTEXTS_H_
