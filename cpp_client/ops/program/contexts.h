#ifndef RECSYS_OPS_PROGRAM_CONTEXTS_H_
#define RECSYS_OPS_PROGRAM_CONTEXTS_H_

// Rows of contexts, which several rows of the batch read in place.

#include <cstdint>
#include <vector>

#include "ops/program/program.h"

namespace recsys::ops {

/// Returns how many rows from `first` to `end` have the context of the first one.
std::int64_t RunOfContext(const std::int64_t* row_context, std::int64_t first, std::int64_t end);

/// Where a program reads the rows of contexts for some rows of the batch: the context's own where
/// these share one, copies where they do not.
class ContextRows {
 public:
  explicit ContextRows(const BoundProgram& bound);

  /// Returns how many of the rows from `first` to `end` pass the steps together. Rows with other
  /// contexts are left to the next tile where their copies would take longer than a tile of its
  /// own.
  std::int64_t TileFrom(std::int64_t first, std::int64_t end) const;

  /// Whether a buffer holds rows of contexts.
  bool any() const { return !found_.empty(); }

  /// Finds the rows of contexts for rows from `first` on, until the next call. Returns for how many
  /// of them they were copied.
  std::int64_t Find(std::int64_t first, std::int64_t num_rows);

  /// Returns where a buffer's row of the first row lies; null for a buffer of the batch's rows.
  const Rows* Of(std::int64_t buffer) const {
    if (found_.empty() || found_[static_cast<std::size_t>(buffer)].data == nullptr) return nullptr;
    return &found_[static_cast<std::size_t>(buffer)];
  }

 private:
  const BoundProgram& bound_;
  const std::int64_t tile_rows_;
  /// Numbers of a context's row in all buffers, and the fewest to copy that are worth a tile.
  std::int64_t width_ = 0, least_copied_ = 0;
  /// By buffer; empty where none holds rows of contexts.
  std::vector<Rows> found_;
};

}  // namespace recsys::ops

#endif  // RECSYS_OPS_PROGRAM_CONTEXTS_H_
