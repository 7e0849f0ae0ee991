#include "format/blob.h"

#include <algorithm>

namespace recsys {

const std::vector<std::string>& DataTypeNames() {
  static const std::vector<std::string> names{"FP32", "FP16", "INT8", "INT4", "INT2"};
  return names;
}

DataType DataTypeOf(const std::string& name) {
  const auto& names = DataTypeNames();
  return static_cast<DataType>(std::find(names.begin(), names.end(), name) - names.begin());
}

int RowFormat::bits() const { return 32 >> static_cast<int>(data_type); }

std::int64_t RowFormat::dim_multiple() const {
  if (!is_quantized()) return 1;
  return 16 / bits();
}

Wide RowFormat::row_bytes(std::int64_t alignment) const {
  return Aligned(header_bytes() + Aligned(dim, dim_multiple()) * bits() / 8, alignment);
}

Wide Aligned(Wide size, std::int64_t alignment) {
  return (size + alignment - 1) / alignment * alignment;
}

Wide BlobBytes(Wide end) {
  // The INT4 and INT2 kernels read up to 64 bytes past the last row for some dims: twice that is
  // available.
  constexpr std::int64_t kTailBytes = 128;
  return Aligned(end, kBlockAlignmentBytes) + kTailBytes;
}

}  // namespace recsys
