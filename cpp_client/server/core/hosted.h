#ifndef RECSYS_SERVER_CORE_HOSTED_H_
#define RECSYS_SERVER_CORE_HOSTED_H_

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "config/settings.h"
#include "recsys/request.h"
#include "server/core/request.h"
#include "server/core/served_model.h"
#include "server/observe/metrics.h"

namespace recsys {

class Executor;

/// One loaded version of a model: its tables, its threads, its checks (serve/hosted.py). Held by
/// shared_ptr: whoever routed a request to it keeps it alive. Open and Close block and belong to
/// one thread; the rest is thread-safe.
class Hosted : public std::enable_shared_from_this<Hosted> {
 public:
  /// Gives an answer to whoever asked (the gateway's End); called from executors' threads, for
  /// requests whose `is_ended` the executor has set. Must not throw.
  using Deliver = std::function<void(Request&, const Status&, Message)>;

  Hosted(OpenedModel opened, ModelSettings settings, Metrics& metrics, Deliver deliver,
         Clock clock = MonotonicSeconds);
  ~Hosted();

  /// Starts the executors' threads and warms them up (serve/warm_up.py), with captured requests too
  /// where the settings name a file. Throws Error where the model fails on a warm-up batch or the
  /// file is no capture; nothing is left then.
  void Open();
  /// Answers what was accepted and ends the threads; idempotent. The series go from the metrics. To
  /// be called before the last reference goes: that may lie in a request that one of the threads
  /// lets go.
  void Close();

  /// Lets a checked request join the queue. Throws Error: kRequestTooLarge, kDraining;
  /// QueueFullError.
  void Submit(const std::shared_ptr<Request>& request);
  /// Drops a request that waits; false where it does not wait any more.
  bool Cancel(Request& request);
  /// Runs `function` while no batch runs; what it throws is thrown here.
  void RunBetweenBatches(const std::function<void()>& function);

  const std::string& name() const { return info_.name; }
  const std::string& version() const { return info_.version; }
  const ModelInfo& info() const { return info_; }
  const Signature& signature() const { return signature_; }
  const ModelSettings& settings() const { return settings_; }
  const RequestChecker& checker() const { return checker_; }
  ServedModel& model() { return *model_; }
  const ServedModel& model() const { return *model_; }
  ModelMetrics& metrics() const { return *metrics_; }

  /// Names of the delta files that were applied, in this order.
  std::vector<std::string> deltas() const;
  void AddDelta(const std::string& file_name);

 private:
  std::unique_ptr<ServedModel> model_;
  ModelInfo info_;
  Signature signature_;
  ModelSettings settings_;
  RequestChecker checker_;
  Metrics& all_metrics_;
  bool is_closed_ = false;
  std::shared_ptr<ModelMetrics> metrics_;
  std::unique_ptr<Executor> executor_;
  mutable std::mutex mutex_;
  std::vector<std::string> deltas_;
};

}  // namespace recsys

#endif  // RECSYS_SERVER_CORE_HOSTED_H_
