#ifndef RECSYS_OPS_OUTSIDE_OUTSIDE_ROWS_H_
#define RECSYS_OPS_OUTSIDE_OUTSIDE_ROWS_H_

#include <cstdint>
#include <vector>

namespace recsys::ops {

/// Stored rows that lie outside the process, in blocks of the tensor with all rows. Thread-safe.
class OutsideRows {
 public:
  /// A row of a block, and where its bytes are written.
  struct Wanted {
    std::int64_t block = 0;
    std::int64_t row = 0;
    std::uint8_t* to = nullptr;
  };
  /// Where some bytes of the tensor lie.
  struct Place {
    /// -1 for in memory.
    std::int64_t block = -1;
    std::int64_t first_row = 0;
  };

  OutsideRows() = default;
  OutsideRows(const OutsideRows&) = delete;
  OutsideRows& operator=(const OutsideRows&) = delete;
  virtual ~OutsideRows() = default;

  /// Returns the place of the row that begins at a byte of the tensor.
  virtual Place Find(std::int64_t offset) const = 0;
  /// Reads rows that differ, all of the same state. Blocks. Rows that cannot be read are zeros
  /// where their tables allow it; else throws Error (kNotReady).
  virtual void Read(const std::vector<Wanted>& rows) = 0;
};

}  // namespace recsys::ops

#endif  // RECSYS_OPS_OUTSIDE_OUTSIDE_ROWS_H_
