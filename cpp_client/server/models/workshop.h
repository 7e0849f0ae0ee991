#ifndef RECSYS_SERVER_MODELS_WORKSHOP_H_
#define RECSYS_SERVER_MODELS_WORKSHOP_H_

#include <functional>
#include <memory>
#include <string>

#include "config/settings.h"
#include "server/core/hosted.h"
#include "server/models/comparer.h"
#include "server/models/monitor.h"
#include "server/models/repository.h"
#include "server/models/route_table.h"

namespace recsys {

/// Loads and warms up a version (the model's name, the version's, the artifact's path, settings);
/// blocks. What it throws is the reason of the failure.
using Host =
    std::function<std::shared_ptr<Hosted>(const std::string& name, const std::string& version,
                                          const std::string& path, const ModelSettings& settings)>;

/// Told of each version's state: model, version, NameOf(state). Called under a lock: quick, must
/// not throw.
using SetState =
    std::function<void(const std::string& model, const std::string& version, const char* state)>;

/// What all models of a server share. Belongs to ModelManager.
struct Workshop {
  explicit Workshop(std::function<void()> changed) : monitor(std::move(changed)) {}

  std::unique_ptr<ModelSource> source;
  Host host;
  SetState set_state;
  /// Told of every new route table; with the monitor held.
  std::function<void(std::shared_ptr<const RouteTable>)> publish;
  std::shared_ptr<Comparer> comparer = std::make_shared<Comparer>();
  Monitor monitor;
  /// Taken while a version is loaded: one at a time, because it takes the processors of those that
  /// serve.
  Turns loading;
};

}  // namespace recsys

#endif  // RECSYS_SERVER_MODELS_WORKSHOP_H_
