#ifndef RECSYS_SERVER_OBSERVE_SNAPSHOT_H_
#define RECSYS_SERVER_OBSERVE_SNAPSHOT_H_

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "server/observe/histogram.h"
#include "server/observe/metrics.h"

namespace recsys {

/// The numbers of one version at one moment, all of the same moment (serve/model_metrics.py,
/// ModelTotals). A plain value.
struct Metrics::Snapshot {
  std::string model;
  std::string version;
  /// Requests that have ended, in the order of kOutcomes.
  std::array<std::int64_t, kNumOutcomes> outcomes{};
  /// Requests that joined the queue.
  std::int64_t accepted = 0;
  /// Seconds, in the order of Stage: queue per request, the others per batch.
  std::array<Histogram, 4> stages{Histogram(kSecondsBounds), Histogram(kSecondsBounds),
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
  std::map<std::string, std::int64_t> table_bytes;
  /// Comparisons with the version that answered, in the order of ShadowResult.
  std::array<std::int64_t, 4> shadow{};
  std::int64_t deltas_applied = 0;
  std::int64_t deltas_failed = 0;
  /// None before ModelMetrics::Describe.
  std::optional<HostedDescription> description;

  const Histogram& stage(Stage which) const { return stages[static_cast<std::size_t>(which)]; }
  std::int64_t num_ok() const { return outcomes[0]; }
  /// Requests that ended in any other way.
  std::int64_t num_failed() const {
    std::int64_t sum = 0;
    for (std::size_t i = 1; i < outcomes.size(); ++i) sum += outcomes[i];
    return sum;
  }
  std::int64_t all_table_bytes() const {
    std::int64_t sum = 0;
    for (const auto& [table, num_bytes] : table_bytes) sum += num_bytes;
    return sum;
  }
};

}  // namespace recsys

#endif  // RECSYS_SERVER_OBSERVE_SNAPSHOT_H_
