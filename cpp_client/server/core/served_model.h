#ifndef RECSYS_SERVER_CORE_SERVED_MODEL_H_
#define RECSYS_SERVER_CORE_SERVED_MODEL_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "recsys/model.h"
#include "recsys/signature.h"

namespace recsys {

/// How a model presents itself to clients and in the metrics (serve/model.py).
struct ModelInfo {
  std::string name;
  std::string version;
  std::string digest;
  std::map<std::string, std::int64_t> table_bytes;
  std::string format_version;
  std::string torch_version;
  std::string fbgemm_version;

  std::int64_t all_table_bytes() const {
    std::int64_t sum = 0;
    for (const auto& [table, num_bytes] : table_bytes) sum += num_bytes;
    return sum;
  }
};

/// What the server needs of a model; recsys::Model is one through server/artifact_model.h, tests
/// have their own. Predict is called from executors' threads, several at once; ApplyDelta only
/// while no Predict runs.
class ServedModel {
 public:
  virtual ~ServedModel() = default;
  virtual const Signature& signature() const = 0;
  /// Which of the artifact's targets this is, such as "cpu".
  virtual std::string target_name() const = 0;
  /// Throws whatever the model throws.
  virtual Outputs Predict(const Batch& batch) = 0;

  /// A delta that was read and checked: what exchanges the rows, and how many dense weights it
  /// leaves as they are.
  struct Delta {
    std::function<void()> apply;
    std::int64_t num_dense_left = 0;
  };
  /// Throws Error.
  virtual Delta PrepareDelta(const std::string& path) = 0;
};

/// A model in memory, before it is hosted.
struct OpenedModel {
  std::unique_ptr<ServedModel> model;
  ModelInfo info;
};

}  // namespace recsys

#endif  // RECSYS_SERVER_CORE_SERVED_MODEL_H_
