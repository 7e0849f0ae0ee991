#ifndef RECSYS_ENGINE_CORE_QUEUE_DRAIN_RATE_H_
#define RECSYS_ENGINE_CORE_QUEUE_DRAIN_RATE_H_

#include <array>
#include <cstdint>
#include <optional>

namespace recsys {

/// What a queue counts.
enum class Amount { kRows = 0, kIds, kBytes };
inline constexpr int kNumAmounts = 3;
/// One number of each.
using Amounts = std::array<std::int64_t, kNumAmounts>;

/// How fast a queue has been draining while there was something to drain, smoothed over about ten
/// batches, and so when a client that found it full should come again (serve/drain_rate.py).
///
/// Everything that leaves counts, cancelled and expired requests too: all of it makes room. The
/// time in which nothing waited does not count. Not thread-safe.
class DrainRate {
 public:
  /// The hint where nothing has been measured yet.
  static constexpr std::int64_t kFirstRetryMs = 100;
  /// No hint is longer.
  static constexpr std::int64_t kMaxRetryMs = 60'000;

  /// Notes what has left the queue.
  void Left(const Amounts& amounts) {
    for (int i = 0; i < kNumAmounts; ++i) left_[i] += amounts[i];
  }
  /// Notes that a batch was taken; `is_empty`: nothing waits any more, so that the time until the
  /// next batch says nothing.
  void Taken(double now_s, bool is_empty);
  /// When so much will have drained as things went so far: 1 to kMaxRetryMs. Grows while a batch
  /// takes longer than usual.
  std::int64_t RetryAfterMs(Amount what, std::int64_t amount, double now_s) const;

 private:
  Amounts left_{};
  std::array<double, kNumAmounts> drained_{};
  double seconds_ = 0;
  std::optional<double> since_s_;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_CORE_QUEUE_DRAIN_RATE_H_
