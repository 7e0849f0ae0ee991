#ifndef RECSYS_ENGINE_CORE_QUEUE_DRAIN_RATE_H_
#define RECSYS_ENGINE_CORE_QUEUE_DRAIN_RATE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace recsys {

/// The quantities counted by a queue.
enum class Amount { kRows = 0, kIds, kBytes };
inline constexpr std::array<Amount, 3> kAllAmounts = {Amount::kRows, Amount::kIds, Amount::kBytes};

/// One number per quantity.
template <typename Number>
struct PerAmount {
  std::array<Number, kAllAmounts.size()> numbers{};

  Number& operator[](Amount what) { return numbers[static_cast<std::size_t>(what)]; }
  const Number& operator[](Amount what) const { return numbers[static_cast<std::size_t>(what)]; }
  PerAmount& operator+=(const PerAmount& other) {
    for (const Amount what : kAllAmounts) (*this)[what] += other[what];
    return *this;
  }
  PerAmount& operator-=(const PerAmount& other) {
    for (const Amount what : kAllAmounts) (*this)[what] -= other[what];
    return *this;
  }
};
using Amounts = PerAmount<std::int64_t>;

/// Measures how fast a queue drains while it is not empty, smoothed over about ten batches, and
/// from that when a client that found it full should retry (serve/engine/reference/batching.py).
///
/// All requests that leave count, including cancelled and expired ones: each makes room. Time in
/// which no request waited does not count. Not thread-safe.
class DrainRate {
 public:
  /// The hint before anything was measured.
  static constexpr std::int64_t kFirstRetryMs = 100;
  /// The longest hint.
  static constexpr std::int64_t kMaxRetryMs = 60'000;

  /// Notes what has left the queue.
  void Left(const Amounts& amounts) { left_ += amounts; }
  /// Notes that a batch was taken; `is_empty`: no request waits any more, so the time until the
  /// next batch is not measured.
  void Taken(double now_s, bool is_empty);
  /// Returns when that amount will have drained at the measured rate: 1 to kMaxRetryMs. Grows while
  /// a batch takes longer than usual.
  std::int64_t RetryAfterMs(Amount what, std::int64_t amount, double now_s) const;

 private:
  Amounts left_{};
  PerAmount<double> drained_;
  double seconds_ = 0;
  std::optional<double> since_s_;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_CORE_QUEUE_DRAIN_RATE_H_
