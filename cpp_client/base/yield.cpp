#include "base/yield.h"

#include <algorithm>
#include <thread>

#include "base/clock.h"

namespace recsys {
namespace {

// Some page faults, or the checksum of 64 KiB.
constexpr double kTurnS = 50e-6;
constexpr std::size_t kComparedPerYield = 1024;
constexpr std::size_t kNumbersPerYield = kBytesPerYield / sizeof(std::int64_t);

}  // namespace

void YieldIfDue() {
  thread_local double last_s = 0;
  if (MonotonicSeconds() - last_s < kTurnS) return;
  std::this_thread::yield();
  last_s = MonotonicSeconds();
}

std::vector<std::int64_t> CopiedInTurns(const std::vector<std::int64_t>& numbers) {
  std::vector<std::int64_t> copied;
  copied.reserve(numbers.size());
  while (copied.size() < numbers.size()) {
    const auto from = numbers.begin() + static_cast<std::ptrdiff_t>(copied.size());
    const std::size_t num = std::min(kNumbersPerYield, numbers.size() - copied.size());
    copied.insert(copied.end(), from, from + static_cast<std::ptrdiff_t>(num));
    YieldIfDue();
  }
  return copied;
}

std::vector<std::int64_t> SortedInTurns(const std::vector<std::int64_t>& numbers) {
  std::vector<std::int64_t> sorted = CopiedInTurns(numbers);
  std::size_t num_compared = 0;
  std::sort(sorted.begin(), sorted.end(), [&num_compared](std::int64_t a, std::int64_t b) {
    if (++num_compared % kComparedPerYield == 0) YieldIfDue();
    return a < b;
  });
  return sorted;
}

void ResizeInTurns(std::vector<std::int64_t>* numbers, std::size_t size) {
  numbers->reserve(size);
  while (numbers->size() < size) {
    numbers->resize(std::min(numbers->size() + kNumbersPerYield, size));
    YieldIfDue();
  }
}

}  // namespace recsys
