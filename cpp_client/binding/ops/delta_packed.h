#ifndef RECSYS_BINDING_OPS_DELTA_PACKED_H_
#define RECSYS_BINDING_OPS_DELTA_PACKED_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace recsys {

/// Returns numbers in Parquet's encoding DELTA_BINARY_PACKED: blocks of 128 differences in as many
/// bits as they need. Throws std::bad_alloc.
std::string DeltaPacked(const std::int64_t* numbers, std::size_t num_numbers);
std::string DeltaPacked(const std::int32_t* numbers, std::size_t num_numbers);

}  // namespace recsys

#endif  // RECSYS_BINDING_OPS_DELTA_PACKED_H_
