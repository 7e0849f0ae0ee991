#ifndef RECSYS_PORT_POLLING_FREED_MEMORY_H_
#define RECSYS_PORT_POLLING_FREED_MEMORY_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>

#include "port/polling/timers.h"

namespace recsys::http2 {

/// Returns memory to the system that connections have held and freed, which the C library keeps for
/// the next batches (base/allocator.h): once they have needed at least kLeastBytes less for a
/// period. A load that comes and goes within one keeps its memory. Not thread-safe.
class FreedMemory final : public Timed {
 public:
  static constexpr std::int64_t kLeastBytes = 16 << 20;
  static constexpr double kPeriodS = 1.0;

  /// `give_back` is called in OnDue.
  FreedMemory(Timers* timers, std::function<void()> give_back)
      : timers_(timers), give_back_(std::move(give_back)) {}
  ~FreedMemory() override { timers_->Remove(this); }
  FreedMemory(const FreedMemory&) = delete;
  FreedMemory& operator=(const FreedMemory&) = delete;

  /// Notes how much is held now. Cheap: for each round of events.
  void Note(std::int64_t num_bytes, double now_s) {
    lately_bytes_ = std::max(lately_bytes_, num_bytes);
    if (most_bytes_ < kLeastBytes && lately_bytes_ >= kLeastBytes) {
      timers_->SetEarlier(this, now_s + kPeriodS);
    }
    now_bytes_ = num_bytes;
  }

  void OnDue(double now_s) override {
    const std::int64_t lately_bytes = std::exchange(lately_bytes_, now_bytes_);
    const bool is_less = lately_bytes <= most_bytes_ - kLeastBytes;
    most_bytes_ = is_less ? lately_bytes : std::max(most_bytes_, lately_bytes);
    if (is_less) give_back_();
    if (most_bytes_ >= kLeastBytes) timers_->Set(this, now_s + kPeriodS);
  }

 private:
  Timers* const timers_;
  const std::function<void()> give_back_;
  std::int64_t now_bytes_ = 0;
  /// The most that was held in this period, and in those before, since memory was last returned.
  std::int64_t lately_bytes_ = 0;
  std::int64_t most_bytes_ = 0;
};

}  // namespace recsys::http2

#endif  // RECSYS_PORT_POLLING_FREED_MEMORY_H_
