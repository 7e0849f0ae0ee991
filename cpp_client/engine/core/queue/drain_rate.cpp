#include "engine/core/queue/drain_rate.h"

#include <algorithm>
#include <cmath>

namespace recsys {
namespace {

// Weight of everything before the last batch: a single slow batch does not dominate, and a change
// shows within tens of batches.
constexpr double kMemory = 0.9;

}  // namespace

void DrainRate::Taken(double now_s, bool is_empty) {
  if (since_s_) {
    seconds_ = kMemory * seconds_ + (now_s - *since_s_);
    for (const Amount what : kAllAmounts) {
      drained_[what] = kMemory * drained_[what] + static_cast<double>(left_[what]);
    }
  }
  left_ = {};
  since_s_ = is_empty ? std::nullopt : std::optional<double>(now_s);
}

std::int64_t DrainRate::RetryAfterMs(Amount what, std::int64_t amount, double now_s) const {
  const double drained = drained_[what];
  if (drained <= 0 || seconds_ <= 0) return kFirstRetryMs;
  const double running_s = since_s_ ? std::max(now_s - *since_s_, 0.0) : 0.0;
  const double ms = 1000 * static_cast<double>(amount) * (seconds_ + running_s) / drained;
  return static_cast<std::int64_t>(
      std::clamp(std::nearbyint(ms), 1.0, static_cast<double>(kMaxRetryMs)));
}

}  // namespace recsys
