#ifndef RECSYS_ENGINE_COUNTERS_VERSION_COUNTERS_H_
#define RECSYS_ENGINE_COUNTERS_VERSION_COUNTERS_H_

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "engine/counters/histogram.h"
#include "engine/counters/outcomes.h"

namespace recsys {

/// Stages of a batch; the time in the queue is counted per request.
enum class Stage { kQueue = 0, kCollate, kExecute, kRespond };
inline constexpr std::size_t kNumStages = 4;

/// What one loaded version has counted, all at one moment. A plain value.
struct VersionTotals {
  OutcomeCounts outcomes{};
  /// Requests that joined the queue.
  std::int64_t accepted = 0;
  /// Seconds, in the order of Stage.
  std::array<Histogram, kNumStages> stages{Histogram(kSecondsBounds), Histogram(kSecondsBounds),
                                           Histogram(kSecondsBounds), Histogram(kSecondsBounds)};
  /// Seconds of whole requests that were answered.
  Histogram request{kSecondsBounds};
  Histogram batch_requests{kRowsBounds};
  Histogram batch_rows{kRowsBounds};
  Histogram batch_ids{kIdsBounds};
  /// When the last batch was counted, in seconds since the epoch; 0 for never.
  double last_batch_s = 0.0;
  std::int64_t pending_rows = 0;
  std::int64_t pending_ids = 0;
  std::int64_t pending_bytes = 0;
  /// Shadow requests of this version that it refused or failed on.
  std::int64_t shadow_failed = 0;
  /// Shadow requests that found its queue full, and pairs of answers that found the ring full.
  std::int64_t shadow_dropped = 0;
  std::int64_t deltas_applied = 0;
  std::int64_t deltas_failed = 0;

  const Histogram& stage(Stage which) const { return stages[static_cast<std::size_t>(which)]; }
  std::int64_t of(Outcome outcome) const { return outcomes[static_cast<std::size_t>(outcome)]; }
  /// A JSON object with these names.
  std::string Json() const;
};

/// The counters of one loaded version. Thread-safe and quick: plain numbers under a lock that is
/// held for nanoseconds.
class VersionCounters {
 public:
  void Count(Outcome outcome);
  /// Counts one request as ok, with the time from its arrival to its answer.
  void Answered(double seconds);
  void Accepted();
  void Observe(Stage stage, double seconds);
  /// All times of one batch; `queue` of each request.
  void ObserveStages(const std::vector<double>& queue, double collate, double execute,
                     double respond);
  void ObserveBatch(std::int64_t num_requests, std::int64_t num_rows, std::int64_t num_ids);
  void SetPending(std::int64_t rows, std::int64_t ids, std::int64_t num_bytes);
  void ShadowFailed();
  void ShadowDropped();
  void DeltaApplied();
  void DeltaFailed();

  VersionTotals Totals() const;

 private:
  mutable std::mutex mutex_;
  VersionTotals totals_;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_COUNTERS_VERSION_COUNTERS_H_
