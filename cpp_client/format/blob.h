#ifndef RECSYS_FORMAT_BLOB_H_
#define RECSYS_FORMAT_BLOB_H_

// Layout of each table's stored rows within one block of bytes (recsys/rows/layout.py,
// recsys/rows/format.py).

#include <cstdint>
#include <string>
#include <vector>

#include "format/wide.h"

namespace recsys {

/// How a table's numbers are stored.
enum class DataType { kFp32, kFp16, kInt8, kInt4, kInt2 };

/// Returns the names of DataType in its order: "FP32", ...
const std::vector<std::string>& DataTypeNames();
DataType DataTypeOf(const std::string& name);

/// How rows of `dim` numbers are stored at alignment 1.
struct RowFormat {
  DataType data_type = DataType::kFp32;
  std::int64_t dim = 0;

  int bits() const;
  bool is_quantized() const { return bits() <= 8; }
  /// Columns can be cut at multiples of this.
  std::int64_t dim_multiple() const;
  /// Bytes of scale and bias before the codes.
  std::int64_t header_bytes() const { return is_quantized() ? 4 : 0; }
  Wide row_bytes(std::int64_t alignment = 1) const;
};

/// A table and the type of its numbers.
struct TableShape {
  std::string name;
  std::int64_t num_embeddings = 0;
  std::int64_t embedding_dim = 0;
  DataType data_type = DataType::kFp32;

  RowFormat row_format() const { return {data_type, embedding_dim}; }
};

/// Columns [column_start, column_end) of rows [row_start, row_end) of a table.
struct RowBlock {
  std::string table;
  DataType data_type = DataType::kFp32;
  std::int64_t row_start = 0;
  std::int64_t row_end = 0;
  std::int64_t column_start = 0;
  std::int64_t column_end = 0;
  std::int64_t offset_bytes = 0;
  std::int64_t row_alignment = 1;

  std::int64_t num_rows() const { return row_end - row_start; }
  RowFormat row_format() const { return {data_type, column_end - column_start}; }
  Wide row_bytes() const { return row_format().row_bytes(row_alignment); }
  Wide num_bytes() const { return row_bytes() * num_rows(); }
};

/// Returns the bytes of a blob whose last block ends at `end`, including the readable tail.
Wide BlobBytes(Wide end);

/// Returns `size` rounded up to a multiple of `alignment`.
Wide Aligned(Wide size, std::int64_t alignment);

/// Blocks start at multiples of this.
inline constexpr std::int64_t kBlockAlignmentBytes = 128;

}  // namespace recsys

#endif  // RECSYS_FORMAT_BLOB_H_
