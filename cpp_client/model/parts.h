#ifndef RECSYS_MODEL_PARTS_H_
#define RECSYS_MODEL_PARTS_H_

#include <torch/script.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "check/files/manifest.h"
#include "model/device_rows.h"
#include "model/rows_file.h"
#include "recsys/model.h"
#include "recsys/request.h"

namespace recsys {

/// The rows that a loaded model reads, and which they are by now (recsys/loaded_rows.py).
struct LoadedRows {
  Manifest manifest;
  std::string digest;
  std::vector<DeviceRows> ranks;
  /// What lookups read in place; null where all rows are copies.
  std::unique_ptr<RowsFile> file;

  std::string state() const {
    const std::lock_guard<std::mutex> guard(lock);
    return state_now;
  }

  /// Held by whoever writes rows, or asks for their state. Lookups do not take it.
  mutable std::mutex lock;
  /// The artifact's digest as loaded, else that of the last delta that was applied.
  std::string state_now;
};

/// A graph that is ready to be called from any number of threads.
class Callable {
 public:
  explicit Callable(torch::jit::Module module)
      : self_(module._ivalue()), forward_(&module.get_method("forward").function()) {}

  /// The graph's answer. Throws what torch throws.
  c10::IValue Call(std::vector<c10::IValue> inputs) const;

 private:
  torch::jit::ObjectPtr self_;
  torch::jit::Function* forward_;
};

struct Model::Parts {
  std::shared_ptr<LoadedRows> rows;
  ModelDescription description;
  std::optional<Callable> forward;
  std::optional<Callable> forward_ranking;
  /// For programs that batch nothing: it takes requests of any size.
  std::optional<RequestChecker> checker;

  const Signature& signature() const { return rows->manifest.signature; }
};

}  // namespace recsys

#endif  // RECSYS_MODEL_PARTS_H_
