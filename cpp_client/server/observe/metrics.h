#ifndef RECSYS_SERVER_OBSERVE_METRICS_H_
#define RECSYS_SERVER_OBSERVE_METRICS_H_

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "config/settings.h"
#include "server/observe/histogram.h"

namespace recsys {

/// How requests end, in the order of serve/model_metrics.py.
inline constexpr const char* kOutcomes[] = {"ok",      "invalid",   "not_found",   "rejected",
                                            "expired", "cancelled", "unavailable", "failed"};
inline constexpr int kNumOutcomes = 8;
enum class Stage { kQueue = 0, kCollate, kExecute, kRespond };
enum class ShadowResult { kSame = 0, kDifferent, kFailed, kDropped };

/// What a loaded version is; stands beside its numbers (serve/model_metrics.py, ModelDescription).
struct HostedDescription {
  std::string target;
  std::string digest;
  std::int64_t num_executors = 1;
  BatchLimits limits;
};

/// The numbers of one loaded version. Thread-safe and quick: plain numbers under a lock that is
/// held for nanoseconds. An implementation for Prometheus' page reads them through Metrics.
class ModelMetrics {
 public:
  ModelMetrics(std::string model, std::string version);

  void Count(const char* outcome);
  /// Counts one request as ok, with the time from its arrival to its answer.
  void Answered(double seconds);
  void Accepted();
  void Observe(Stage stage, double seconds);
  /// All times of one batch; `queue` of each request.
  void ObserveStages(const std::vector<double>& queue, double collate, double execute,
                     double respond);
  void ObserveBatch(std::int64_t num_requests, std::int64_t num_rows, std::int64_t num_ids);
  void SetPending(std::int64_t rows, std::int64_t ids, std::int64_t num_bytes);
  void SetTableBytes(std::map<std::string, std::int64_t> table_bytes);
  void Describe(HostedDescription description);
  void CountShadow(ShadowResult result);
  void DeltaApplied();
  void DeltaFailed();

  const std::string& model() const { return model_; }
  const std::string& version() const { return version_; }

 private:
  friend class Metrics;
  friend class MetricsPage;
  struct Totals;

  const std::string model_;
  const std::string version_;
  mutable std::mutex mutex_;
  std::shared_ptr<Totals> totals_;
};

/// All metrics of one server. Thread-safe (serve/metrics.py).
class Metrics {
 public:
  Metrics();
  ~Metrics();

  /// The numbers of a version that is being loaded: all zero, also where an earlier load of it is
  /// not gone yet.
  std::shared_ptr<ModelMetrics> Begin(const std::string& model, const std::string& version);
  /// Lets the series of a version that was unloaded disappear; its requests are still counted among
  /// all.
  void Drop(const std::shared_ptr<ModelMetrics>& model);
  /// "loading", "ready", "draining", "failed", or "available" for one that only lies in the
  /// repository.
  void SetState(const std::string& model, const std::string& version, const std::string& state);
  /// Counts one request that named no model that the server holds.
  void Unrouted(const char* outcome);
  /// Reads counts that others keep, whenever the page is made; `what`: capture, log or trace.
  void Watch(const std::string& what, std::function<std::map<std::string, std::int64_t>()> read);
  /// Requests so far by outcome, and how many were "accepted", over all models, also past ones.
  std::map<std::string, std::int64_t> Outcomes() const;
  /// Prometheus' text format, as the Python server's page: same families, labels, values, order.
  /// `is_open_metrics`: in OpenMetrics 1.0 instead, for those who ask for it.
  std::string Page(bool is_open_metrics = false) const;
  /// What KServe's ModelStatistics and others read of one version; see the implementation's header
  /// for its fields.
  struct Snapshot;
  std::vector<Snapshot> Snapshots() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace recsys

#endif  // RECSYS_SERVER_OBSERVE_METRICS_H_
