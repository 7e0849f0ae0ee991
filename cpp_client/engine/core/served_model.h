#ifndef RECSYS_ENGINE_CORE_SERVED_MODEL_H_
#define RECSYS_ENGINE_CORE_SERVED_MODEL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "recsys/model.h"
#include "recsys/signature.h"

namespace recsys {

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

/// When a batch passed its stages, in seconds on the clock of MonotonicSeconds.
struct BatchTimes {
  double taken_s = 0;
  double collated_s = 0;
  double executed_s = 0;
  double responded_s = 0;
  std::int64_t num_requests = 0;
  std::int64_t num_rows = 0;
};

/// A model in memory.
struct OpenedModel {
  std::unique_ptr<ServedModel> model;
  ModelInfo info;
  /// Rows to warm it up with; synthetic ones if there are none.
  VerifiedRows rows = {};
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_CORE_SERVED_MODEL_H_
