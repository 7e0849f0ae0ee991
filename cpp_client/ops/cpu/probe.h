#ifndef RECSYS_OPS_CPU_PROBE_H_
#define RECSYS_OPS_CPU_PROBE_H_

#include <cstdint>

namespace recsys::ops {

/// Reads rows as fast as this thread can, and does nothing with them: one byte of each of their
/// cache lines. Row i lies at data + offsets[i] and has sizes[i] bytes; the row `ahead` rows later
/// is prefetched, none if `ahead` is 0. Checks nothing. Returns the exclusive or of the bytes, so
/// that no read can be left out.
std::uint8_t ReadRows(const std::uint8_t* data, const std::int64_t* offsets,
                      const std::int64_t* sizes, std::int64_t num_rows, std::int64_t ahead);

}  // namespace recsys::ops

#endif  // RECSYS_OPS_CPU_PROBE_H_
