#ifndef RECSYS_ENGINE_CORE_SERVABLE_H_
#define RECSYS_ENGINE_CORE_SERVABLE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/core/request.h"
#include "engine/counters/version_counters.h"
#include "engine/settings/settings.h"
#include "recsys/model.h"
#include "recsys/request.h"
#include "recsys/signature.h"

namespace recsys {

class Executor;

/// Describes a loaded model, which an artifact describes but for its version.
struct ModelInfo : ModelDescription {
  std::string version;
};

/// The engine's interface to a model: an artifact (engine/artifact/artifact_model.h), or a test's
/// own. Predict is called from executors' threads, several at once; a delta is applied only while
/// no Predict runs.
class ServedModel {
 public:
  virtual ~ServedModel() = default;
  virtual const Signature& signature() const = 0;
  /// Throws the model's exceptions; Error (kRequest) if one of the requests is to blame.
  virtual Outputs Predict(const Batch& batch) = 0;
  /// As Model::shares_contexts. Called as Predict is.
  virtual bool shares_contexts() const { return false; }

  /// Returns zeros without a cache. Called from any thread.
  virtual ContextCacheCounts context_cache() const { return {}; }
  /// Returns zeros if all rows are in memory. Called from any thread.
  virtual OutsideRowsCounts outside_rows() const { return {}; }
  /// Called once, after the warm-up.
  virtual void ResetContextCacheCounts() {}

  /// As Model::NumOwned. Called from any thread.
  virtual std::optional<std::int64_t> NumOwned(const std::string& /*table*/,
                                               const std::vector<std::int64_t>& /*ids*/) const {
    return std::nullopt;
  }

  /// A delta that was read and checked: a function that replaces the rows, and how many dense
  /// weights it does not update.
  struct Delta {
    std::function<void()> apply;
    std::int64_t num_dense_left = 0;
  };
  /// Throws Error.
  virtual Delta PrepareDelta(const std::string& path) = 0;
};

/// A model in memory.
struct OpenedModel {
  std::unique_ptr<ServedModel> model;
  ModelInfo info;
  /// Rows to warm it up with; synthetic ones if there are none.
  VerifiedRows rows = {};
};

/// What records of a version's requests need to know of it, also after it is gone.
struct VersionShape {
  std::string model, version;
  Signature signature;
  /// Of each input, whether it belongs to the context.
  std::vector<bool> dense_in_context, sparse_in_context;

  VersionShape(const ModelInfo& info, Signature all);
};

/// One loaded version of a model: its tables, threads, checks and counters. Held by shared_ptr: a
/// request routed to it keeps it alive. Open and Close block and must be called from one thread;
/// the rest is thread-safe.
class Servable : public std::enable_shared_from_this<Servable> {
 public:
  /// Receives an answer (Gateway::End); called from executors' threads, for requests whose
  /// `is_ended` the executor has set. Must not throw.
  using Deliver = std::function<void(Request&, const Status&, Message)>;

  Servable(OpenedModel opened, VersionSettings settings, Deliver deliver,
           Clock clock = MonotonicSeconds);
  ~Servable();

  /// Starts the executors' threads and warms them up with batches of WarmUpBatches
  /// and with `warm_up` (serialized recsys.v1.PredictRequests). Throws Error if the model fails on
  /// a warm-up batch; then it is closed.
  void Open(const std::vector<std::string>& warm_up = {});
  /// Answers the accepted requests, ends the threads and frees the model; idempotent.
  void Close();

  /// Reads a delta and replaces its rows between two batches; returns how many dense weights it
  /// does not update. Blocks. Throws Error; then nothing has changed.
  std::int64_t ApplyDelta(const std::string& path);

  /// Returns how many raw IDs own a row of a managed table (Model::NumOwned); not set after Close.
  std::optional<std::int64_t> NumOwned(const std::string& table,
                                       const std::vector<std::int64_t>& ids) const;

  /// Returns a snapshot of its counters. After Close the context cache holds nothing.
  VersionTotals Totals() const;

  const std::string& name() const { return info_.name; }
  const std::string& version() const { return info_.version; }
  const ModelInfo& info() const { return info_; }
  const Signature& signature() const { return signature_; }
  const std::shared_ptr<const VersionShape>& shape() const { return shape_; }
  const VersionSettings& settings() const { return settings_; }
  const RequestChecker& checker() const { return checker_; }
  /// Takes requests, and runs them in batches.
  Executor& executor() { return *executor_; }
  /// Must not be called after Close.
  ServedModel& model() { return *model_; }
  VersionCounters& metrics() { return counters_; }
  const VersionCounters& metrics() const { return counters_; }

 private:
  /// Held for moments, to read the model's counts and to take it away.
  mutable std::mutex model_mutex_;
  std::unique_ptr<ServedModel> model_;
  /// The counts of a closed model.
  ContextCacheCounts last_contexts_;
  OutsideRowsCounts last_outside_;
  ModelInfo info_;
  Signature signature_;
  std::shared_ptr<const VersionShape> shape_;
  VersionSettings settings_;
  RequestChecker checker_;
  /// Until it is open.
  VerifiedRows rows_;
  VersionCounters counters_;
  /// Held while a delta is applied and while the servable closes.
  std::mutex life_;
  bool is_closed_ = false;
  std::unique_ptr<Executor> executor_;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_CORE_SERVABLE_H_
