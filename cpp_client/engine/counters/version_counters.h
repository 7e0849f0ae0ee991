#ifndef RECSYS_ENGINE_COUNTERS_VERSION_COUNTERS_H_
#define RECSYS_ENGINE_COUNTERS_VERSION_COUNTERS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "base/stripes.h"
#include "recsys/model.h"
#include "recsys/status_code.h"

namespace recsys {

/// Upper bounds of a histogram's buckets, ascending; values above the last have an additional
/// bucket. Must have static lifetime.
struct HistogramBounds {
  static constexpr std::size_t kMax = 17;
  std::size_t size = 0;
  std::array<double, kMax> values{};
};

/// 50 us to 10 s, in steps of about two: from a lookup on one row to a queue under overload.
extern const HistogramBounds kSecondsBounds;
/// Powers of two up to 8192.
extern const HistogramBounds kRowsBounds;
/// Powers of four from 16 to 4194304.
extern const HistogramBounds kIdsBounds;

/// Counts values by bucket, in a few nanoseconds. Not thread-safe: the caller holds a lock around
/// every call. A copy is a snapshot.
class Histogram {
 public:
  explicit Histogram(const HistogramBounds& bounds) : bounds_(&bounds) {}

  /// Adds one value; a value equal to a bound belongs to that bound's bucket.
  void Add(double value);
  /// Adds all values of another one with the same bounds.
  void Add(const Histogram& other);

  const HistogramBounds& bounds() const { return *bounds_; }
  /// Number of values in one bucket; not cumulative. `bucket` is at most bounds().size, which is
  /// the bucket above all bounds.
  std::int64_t in_bucket(std::size_t bucket) const { return counts_[bucket]; }
  double sum() const { return sum_; }
  /// Number of values added.
  std::int64_t count() const;

 private:
  const HistogramBounds* bounds_;
  std::array<std::int64_t, HistogramBounds::kMax + 1> counts_{};
  double sum_ = 0.0;
};

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
