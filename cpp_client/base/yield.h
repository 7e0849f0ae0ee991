#ifndef RECSYS_BASE_YIELD_H_
#define RECSYS_BASE_YIELD_H_

#include <cstddef>

namespace recsys {

/// Bytes of memory to work through between two calls of YieldIfDue.
inline constexpr std::size_t kBytesPerYield = std::size_t{1} << 16;

/// Lets waiting threads use this core if the calling thread has used it for 50 microseconds since
/// the last such call. For long work beside requests: without it, a request that waits for the core
/// waits until the scheduler's next tick, 1 to 4 milliseconds.
void YieldIfDue();

}  // namespace recsys

#endif  // RECSYS_BASE_YIELD_H_
