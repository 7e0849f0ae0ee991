#ifndef RECSYS_SERVER_OBSERVE_METRICS_PAGE_H_
#define RECSYS_SERVER_OBSERVE_METRICS_PAGE_H_

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "server/observe/process_numbers.h"
#include "server/observe/snapshot.h"

namespace recsys {

/// All that the page shows. A plain value.
struct PageNumbers {
  struct State {
    std::string model;
    std::string version;
    /// An index of kModelStates.
    std::size_t state = 0;
  };

  std::vector<Metrics::Snapshot> models;
  /// In the order in which versions got one.
  std::vector<State> states;
  /// Requests that named no model that the server holds, in the order of kOutcomes.
  std::array<std::int64_t, kNumOutcomes> unrouted{};
  /// Counts by result of "capture", "log" and "trace", where there is one.
  std::map<std::string, std::map<std::string, std::int64_t>> watched;
  ProcessNumbers process;
};

/// Of a version that is in memory, or was meant to be.
inline constexpr const char* kModelStates[] = {"loading", "ready", "draining", "failed"};

/// The page, family by family (serve/metrics_collector.py; docs/metrics.md says what each of them
/// is for). `is_open_metrics`: in OpenMetrics 1.0 rather than Prometheus' text format 0.0.4.
std::string MakeMetricsPage(const PageNumbers& numbers, bool is_open_metrics);

}  // namespace recsys

#endif  // RECSYS_SERVER_OBSERVE_METRICS_PAGE_H_
