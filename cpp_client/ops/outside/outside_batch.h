#ifndef RECSYS_OPS_OUTSIDE_OUTSIDE_BATCH_H_
#define RECSYS_OPS_OUTSIDE_OUTSIDE_BATCH_H_

#include <cstdint>
#include <vector>

#include "ops/kernels/kernels.h"
#include "ops/outside/outside_rows.h"

namespace recsys::ops {

/// The rows outside the process that the lookups of a batch need, each once.
class OutsideBatch {
 public:
  /// By ID of a slot's feature, where its row lies.
  using Found = std::vector<const std::uint8_t*>;

  /// Adds those of a slot. `found`: filled by Read, which it must outlive. Returns the position of
  /// the first ID out of range, or -1.
  std::int64_t Add(const Lookup& lookup, const Slot& slot, OutsideRows::Place place, Found* found);

  /// Reads the rows, and fills what Add was given. Returns their memory. Throws as
  /// OutsideRows::Read.
  std::vector<std::uint8_t> Read(OutsideRows* from);

 private:
  /// Returns the position among rows_ of a row that may be there.
  std::int64_t PositionOf(std::int64_t block, std::int64_t row, std::int64_t row_bytes);
  void Grow();

  std::vector<OutsideRows::Wanted> rows_;
  /// By row: where its bytes begin.
  std::vector<std::int64_t> starts_;
  std::int64_t num_bytes_ = 0;
  /// Positions of rows, plus one, by hash; 0 for none.
  std::vector<std::int32_t> table_;
  struct Slots {
    Found* found;
    /// By ID.
    std::vector<std::int64_t> positions;
  };
  std::vector<Slots> slots_;
};

}  // namespace recsys::ops

#endif  // RECSYS_OPS_OUTSIDE_OUTSIDE_BATCH_H_
