#ifndef RECSYS_ENGINE_COUNTERS_VERSION_COUNTERS_H_
#define RECSYS_ENGINE_COUNTERS_VERSION_COUNTERS_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "base/stripes.h"
#include "engine/counters/histogram.h"
#include "engine/counters/outcomes.h"
#include "recsys/model.h"

namespace recsys {

/// Stages of a batch; the time in the queue is counted per request.
enum class Stage { kQueue = 0, kCollate, kExecute, kRespond };
inline constexpr std::size_t kNumStages = 4;

/// One loaded version's counters. A plain value.
struct VersionTotals {
  OutcomeCounts outcomes{};
  /// Requests that joined the queue.
  std::int64_t accepted = 0;
  /// In seconds, in the order of Stage.
  std::array<Histogram, kNumStages> stages{Histogram(kSecondsBounds), Histogram(kSecondsBounds),
                                           Histogram(kSecondsBounds), Histogram(kSecondsBounds)};
  /// Total seconds of answered requests.
  Histogram request{kSecondsBounds};
  Histogram batch_requests{kRowsBounds};
  Histogram batch_rows{kRowsBounds};
  Histogram batch_ids{kIdsBounds};
  /// When the last batch was counted, in seconds since the epoch; 0 for never.
  double last_batch_s = 0.0;
  std::int64_t pending_rows = 0;
  std::int64_t pending_ids = 0;
  std::int64_t pending_bytes = 0;
  /// Shadow requests that this version refused or failed on.
  std::int64_t shadow_failed = 0;
  /// Shadow requests dropped because its queue was full, and pairs of outputs dropped because the
  /// ring was full.
  std::int64_t shadow_dropped = 0;
  /// Requests whose rows several executors have computed; each counts as one batch.
  std::int64_t cut_requests = 0;
  std::int64_t deltas_applied = 0;
  std::int64_t deltas_failed = 0;
  /// The model counts these itself.
  ContextCacheCounts context_cache;
  OutsideRowsCounts outside_rows;

  const Histogram& stage(Stage which) const { return stages[static_cast<std::size_t>(which)]; }
  std::int64_t of(Outcome outcome) const { return outcomes[static_cast<std::size_t>(outcome)]; }
  /// Adds what another one has counted.
  void Add(const VersionTotals& other);
  /// Returns a JSON object with these names.
  std::string Json() const;
};

/// The counters of one loaded version. Thread-safe and fast: plain numbers of each stripe of
/// threads, under a lock that is held for nanoseconds.
class VersionCounters {
 public:
  void Count(Outcome outcome);
  /// Counts one request as ok, with the time from its arrival to its answer.
  void Answered(double seconds);
  void Accepted(std::int64_t num_requests);
  void Observe(Stage stage, double seconds);
  /// Counts all times of one batch; `queue` has one per request.
  void ObserveStages(const std::vector<double>& queue, double collate, double execute,
                     double respond);
  void ObserveBatch(std::int64_t num_requests, std::int64_t num_rows, std::int64_t num_ids);
  void SetPending(std::int64_t rows, std::int64_t ids, std::int64_t num_bytes);
  void ShadowFailed();
  void ShadowDropped();
  void RequestCut();
  void DeltaApplied();
  void DeltaFailed();

  VersionTotals Totals() const;

 private:
  struct Counted {
    mutable std::mutex mutex;
    VersionTotals totals;
  };
  /// Changes the calling thread's numbers.
  template <typename Function>
  void Change(Function change) {
    Counted& counted = counted_.here();
    const std::lock_guard<std::mutex> lock(counted.mutex);
    change(counted.totals);
  }

  Striped<Counted> counted_;
  // Changed under the lock of a queue.
  std::atomic<std::int64_t> accepted_{0};
  std::atomic<std::int64_t> pending_rows_{0};
  std::atomic<std::int64_t> pending_ids_{0};
  std::atomic<std::int64_t> pending_bytes_{0};
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_COUNTERS_VERSION_COUNTERS_H_
