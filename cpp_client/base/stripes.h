#ifndef RECSYS_BASE_STRIPES_H_
#define RECSYS_BASE_STRIPES_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "base/clock.h"

namespace recsys {

/// More than there are polling threads; executors share them.
inline constexpr std::size_t kNumStripes = 32;

/// Returns the stripe of the calling thread: threads get them in turn.
inline std::size_t ThisStripe() {
  static std::atomic<std::size_t> last{0};
  thread_local const std::size_t stripe =
      last.fetch_add(1, std::memory_order_relaxed) % kNumStripes;
  return stripe;
}

/// Data that many threads change, once for each stripe and on cache lines of its own: a thread that
/// changes only what is of its stripe hardly ever waits for another one.
template <typename T>
class Striped {
 public:
  /// Returns that of the calling thread.
  T& here() { return all_[ThisStripe()].value; }
  T& operator[](std::size_t stripe) { return all_[stripe].value; }
  const T& operator[](std::size_t stripe) const { return all_[stripe].value; }

 private:
  static constexpr std::size_t kLineBytes = 64;
  struct alignas(kLineBytes) One {
    T value{};
  };
  std::array<One, kNumStripes> all_;
};

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

#endif  // RECSYS_BASE_STRIPES_H_
