#ifndef RECSYS_BASE_YIELD_H_
#define RECSYS_BASE_YIELD_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace recsys {

/// Bytes of memory to work through between two calls of YieldIfDue.
inline constexpr std::size_t kBytesPerYield = std::size_t{1} << 16;

/// Lets waiting threads use this core if the calling thread has used it for 50 microseconds since
/// the last such call. For long work beside requests: without it, a request that waits for the core
/// waits until the scheduler's next tick, 1 to 4 milliseconds.
void YieldIfDue();

/// Calls YieldIfDue for each sixteenth of some small pieces of work.
inline void YieldIfDue(std::size_t piece) {
  if (piece % 16 == 0) YieldIfDue();
}

/// Return a copy of numbers, and one in ascending order; they call YieldIfDue meanwhile.
std::vector<std::int64_t> CopiedInTurns(const std::vector<std::int64_t>& numbers);
std::vector<std::int64_t> SortedInTurns(const std::vector<std::int64_t>& numbers);

/// Gives an empty array a size; calls YieldIfDue meanwhile, as system memory is slow at first.
void ResizeInTurns(std::vector<std::int64_t>* numbers, std::size_t size);

}  // namespace recsys

#endif  // RECSYS_BASE_YIELD_H_
