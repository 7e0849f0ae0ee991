#ifndef RECSYS_BASE_OPEN_COUNT_H_
#define RECSYS_BASE_OPEN_COUNT_H_

#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "base/clock.h"
#include "base/stripes.h"

namespace recsys {

/// Counts what is open, such as calls. Thread-safe; threads share neither a lock nor a cache line,
/// unless one waits.
class OpenCount {
 public:
  /// Returns a stripe for End, which ends it where it began: so no sum is too small.
  std::size_t Begin() {
    const std::size_t stripe = ThisStripe();
    counts_[stripe].fetch_add(1);
    return stripe;
  }
  /// May be called by another thread than Begin.
  void End(std::size_t stripe) {
    counts_[stripe].fetch_sub(1);
    if (!is_awaited_.load() || num_open() != 0) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    none_.notify_all();
  }

  std::int64_t num_open() const {
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < kNumStripes; ++i) sum += counts_[i].load();
    return sum;
  }
  /// Waits until none is open, or until then (MonotonicSeconds); returns whether none is.
  bool WaitUntilNone(double until_s) {
    std::unique_lock<std::mutex> lock(mutex_);
    is_awaited_.store(true);
    const auto is_none = [this] { return num_open() == 0; };
    // Long waits are split: the library's clocks overflow.
    constexpr double kPieceS = 3600;
    while (!is_none()) {
      const double left_s = until_s - MonotonicSeconds();
      if (!(left_s > 0)) return false;
      none_.wait_for(lock, std::chrono::duration<double>(std::fmin(left_s, kPieceS)), is_none);
    }
    return true;
  }

 private:
  Striped<std::atomic<std::int64_t>> counts_;
  std::atomic<bool> is_awaited_{false};
  std::mutex mutex_;
  std::condition_variable none_;
};

}  // namespace recsys

#endif  // RECSYS_BASE_OPEN_COUNT_H_
