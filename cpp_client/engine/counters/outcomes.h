#ifndef RECSYS_ENGINE_COUNTERS_OUTCOMES_H_
#define RECSYS_ENGINE_COUNTERS_OUTCOMES_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "recsys/status_code.h"

namespace recsys {

/// How requests end, for the counters.
enum class Outcome {
  kOk = 0,
  kInvalid,
  kNotFound,
  kRejected,
  kExpired,
  kCancelled,
  kUnavailable,
  kFailed,
};
inline constexpr std::size_t kNumOutcomes = 8;

Outcome OutcomeOf(StatusCode code);
/// Such as "not_found".
const char* OutcomeName(Outcome outcome);

using OutcomeCounts = std::array<std::int64_t, kNumOutcomes>;

/// Counts of requests that reached no version. Thread-safe.
class UnroutedCounters {
 public:
  void Count(Outcome outcome) {
    counts_[static_cast<std::size_t>(outcome)].fetch_add(1, std::memory_order_relaxed);
  }
  OutcomeCounts totals() const {
    OutcomeCounts totals{};
    for (std::size_t i = 0; i < kNumOutcomes; ++i) totals[i] = counts_[i].load();
    return totals;
  }

 private:
  std::array<std::atomic<std::int64_t>, kNumOutcomes> counts_{};
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_COUNTERS_OUTCOMES_H_
