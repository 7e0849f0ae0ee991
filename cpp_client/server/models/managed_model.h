#ifndef RECSYS_SERVER_MODELS_MANAGED_MODEL_H_
#define RECSYS_SERVER_MODELS_MANAGED_MODEL_H_

#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "server/models/managed_version.h"
#include "server/models/monitor.h"
#include "server/models/route_table.h"
#include "server/models/status.h"
#include "server/models/workshop.h"

namespace recsys {

/// One model: its versions, and its routing (serve/managed_model.py).
///
/// A new version is loaded and warmed up beside the one that serves. Then the model's route table
/// is exchanged in one step; what the routing no longer needs drains, and its memory is freed.
///
/// All methods are called with the workshop's monitor held; those that block let it go meanwhile.
/// Those that change something must not overlap (their caller holds `turns`), but for
/// RollbackAtOnce and Close.
class ManagedModel {
 public:
  ManagedModel(std::string name, const ModelSettings& settings, Workshop& workshop);
  ManagedModel(const ManagedModel&) = delete;
  ManagedModel& operator=(const ManagedModel&) = delete;

  const std::string& name() const { return name_; }
  /// Held while something is changed. Not to be waited for with the monitor held.
  Turns& turns() { return turns_; }
  /// Rollbacks that did not wait for their turn.
  std::int64_t num_rollbacks() const { return num_rollbacks_; }
  /// Whether nothing of it is in memory, or was in the repository when that was last looked
  /// through.
  bool is_gone() const { return versions_.empty(); }
  ModelStatus Status() const;

  /// Looks through the repository, and loads what the routing wants, unless it has failed as it is
  /// now. Throws std::system_error where the folder cannot be read.
  void Rescan();
  /// Loads a version; the newest, if `name` is empty. It stays, even if the routing does not need
  /// it. Throws Error: kModelNotFound, kModelChange.
  ModelVersionStatus Load(std::string name);
  /// Takes a version out of the routing and the memory; all versions, if `name` is empty. Throws
  /// Error: kModelNotFound, kModelChange (the routing is pinned to it).
  void Unload(const std::string& name);
  /// Loads what a routing needs, then goes over to it in one step. `num_rollbacks`: as it was when
  /// the routing was asked for. Throws Error: kModelNotFound, kModelChange; nothing has changed
  /// then.
  void SetRouting(const Routing& routing, std::int64_t num_rollbacks);
  /// Back to the routing and the version before the last change; pinned, so that no newer one takes
  /// over. Throws Error: kModelNotFound, kModelChange; nothing has changed then.
  void Rollback();
  /// The same beside another change, whose versions may take long to load; that change then leaves
  /// the routing. False where it cannot be, because the version is not in memory any more. Does not
  /// block.
  bool RollbackAtOnce();
  /// Exchanges rows of a version; of the one that serves, if `name` is empty. Throws Error:
  /// kModelNotFound, kModelChange.
  ModelVersionStatus ApplyDelta(const std::string& name, const std::string& file_name);
  /// Takes no further requests. Each of these is ready when what one version had accepted is
  /// answered.
  std::vector<std::shared_future<void>> Close();

 private:
  using Files = std::map<std::string, Fingerprint>;
  using Versions = std::map<std::string, std::shared_ptr<ManagedVersion>, OldestFirst>;

  /// What a rollback goes back to.
  struct Point {
    Routing routing;
    std::string serving;
  };

  /// Makes a change and publishes what has come of it, also where it fails.
  template <typename Change>
  void AndPublish(Change&& change);

  /// The versions in the repository, with their files.
  Files Look();
  std::shared_ptr<ManagedVersion> Version(const std::string& name);
  std::shared_ptr<ManagedVersion> Known(const std::string& name) const;
  Routing RoutingBefore() const;
  void Forget(const std::string& name);
  std::set<std::string> Ready() const;
  /// Sees to it that the newest version is ready that can be; the one before it where it cannot,
  /// and so on.
  void BringLatest(const Routing& routing, const Files& on_disk);
  /// Loads a version if it can be; its state and the log say why not.
  bool Try(const std::string& name);
  /// Loads a version that an operator wants.
  std::shared_ptr<ManagedVersion> Ensure(const std::string& name);
  std::shared_ptr<ManagedVersion> LoadVersion(const std::string& name);
  Plan MakePlanNow() const;
  /// Whether a version stays in memory without being kept by an operator.
  bool IsNeeded(const std::string& name) const;
  /// Lets the routing take in what is ready, in one step, and lets go of what nothing needs (if
  /// `lets_go`), and of those that are `leaving` in any case.
  void Publish(const std::set<std::string>& leaving = {}, bool lets_go = true);
  void Remember(const Plan& plan);
  std::shared_ptr<Shadow> ShadowOf(const std::string& name, const HostedMap& hosted) const;
  void PublishTable(RouteTable table);

  const std::string name_;
  const ModelSettings settings_;
  Workshop& shop_;
  Turns turns_;
  Versions versions_;
  Routing routing_;
  std::shared_ptr<const RouteTable> table_;
  Point point_;
  std::optional<Point> previous_;
  std::int64_t num_rollbacks_ = 0;
  bool is_unloaded_ = false;
  bool is_closed_ = false;
};

}  // namespace recsys

#endif  // RECSYS_SERVER_MODELS_MANAGED_MODEL_H_
