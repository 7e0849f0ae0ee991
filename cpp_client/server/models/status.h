#ifndef RECSYS_SERVER_MODELS_STATUS_H_
#define RECSYS_SERVER_MODELS_STATUS_H_

// What operators are told about models and their versions (serve/status.py).

#include <cstdint>
#include <string>
#include <vector>

#include "config/settings.h"

namespace recsys {

/// How far a version is.
enum class ModelState {
  /// In the repository, not in memory.
  kAvailable,
  /// Being read and warmed up.
  kLoading,
  /// Answers what is routed to it.
  kReady,
  /// Out of the routing, answers what it has accepted.
  kDraining,
  /// Could not be loaded.
  kFailed,
};

/// "available" and so on: as the metrics have it.
const char* NameOf(ModelState state);

/// One version.
struct ModelVersionStatus {
  std::string version;
  ModelState state = ModelState::kAvailable;
  /// Why it is kFailed; else empty. Without paths and addresses.
  std::string reason;
  /// Whether that is for what its files or settings are.
  bool is_unusable = false;
  /// Of the artifact's manifest; empty where it is not in memory.
  std::string digest;
  /// Names of the delta files that were applied, in this order.
  std::vector<std::string> deltas;
  /// Of its tables' rows; 0 where it is not in memory.
  std::int64_t table_bytes = 0;
};

/// One model.
struct ModelStatus {
  std::string model;
  /// As it was set.
  Routing routing;
  /// The version that answers requests which name none, the canary's share apart; empty where none
  /// is ready.
  std::string serving;
  /// Those in the repository or in memory, the oldest first.
  std::vector<ModelVersionStatus> versions;
};

}  // namespace recsys

#endif  // RECSYS_SERVER_MODELS_STATUS_H_
