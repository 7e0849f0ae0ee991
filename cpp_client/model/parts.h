#ifndef RECSYS_MODEL_PARTS_H_
#define RECSYS_MODEL_PARTS_H_

#include <torch/script.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "format/manifest/manifest.h"
#include "model/answers.h"
#include "model/graphs/graphs.h"
#include "model/rows/device_rows.h"
#include "model/rows/mapping.h"
#include "model/rows/rows_file.h"
#include "ops/context_cache.h"
#include "outside/stored_rows.h"
#include "recsys/model.h"
#include "recsys/request.h"

namespace recsys {

/// A loaded model's rows, and their current state (recsys/artifact/loaded_rows.py).
struct LoadedRows {
  Manifest manifest;
  std::string digest;
  std::vector<DeviceRows> ranks;
  /// The file that lookups read in place; null if all rows are copies.
  std::unique_ptr<RowsFile> file;
  /// Those outside the process; null if there are none.
  std::shared_ptr<StoredRows> outside;
  /// Deltas change them in place too.
  std::vector<LoadedMapping> mappings;

  std::string state() const {
    const std::lock_guard<std::mutex> guard(lock);
    return state_now;
  }

  /// Must be held to write rows, to replace graphs, or to read their state. Lookups do not take
  /// it.
  mutable std::mutex lock;
  /// The digest of the artifact as loaded, or of the last delta applied.
  std::string state_now;
};

struct Model::Parts {
  std::shared_ptr<LoadedRows> rows;
  ModelDescription description;
  /// Not set if the artifact holds none.
  std::optional<Answers> answers;
  std::optional<LoadedGraphs> graphs;
  /// Which the graphs use; null for none.
  std::shared_ptr<ops::ContextCache> context_cache;
  /// For programs that do no batching: accepts requests of any size.
  std::optional<RequestChecker> checker;

  const Signature& signature() const { return rows->manifest.signature; }
};

}  // namespace recsys

#endif  // RECSYS_MODEL_PARTS_H_
