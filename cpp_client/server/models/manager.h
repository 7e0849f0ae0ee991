#ifndef RECSYS_SERVER_MODELS_MANAGER_H_
#define RECSYS_SERVER_MODELS_MANAGER_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "config/settings.h"
#include "recsys/error.h"
#include "server/core/gateway.h"
#include "server/models/managed_model.h"
#include "server/models/repository.h"
#include "server/models/route_table.h"
#include "server/models/status.h"
#include "server/models/workshop.h"

namespace recsys {

/// Too few models have a version that answers.
class NotServingError : public Error {
 public:
  NotServingError(const std::string& text, bool is_unusable)
      : Error(ErrorKind::kInternal, text), is_unusable_(is_unusable) {}
  /// Whether it is, for each, its files or settings that have to be mended (Python:
  /// UnusableModelsError).
  bool is_unusable() const { return is_unusable_; }

 private:
  bool is_unusable_;
};

/// What the manager is given by whoever puts a server together.
struct ManagerParts {
  std::unique_ptr<ModelSource> source;
  Host host;
  /// How a model is served; the result is copied.
  std::function<const ModelSettings&(const std::string&)> settings_of;
  /// Such as Metrics::SetState.
  SetState set_state;
  /// Called whenever something that answers has come or gone, in whatever thread changed it; may
  /// ask the manager, but not change it. Must not throw.
  std::function<void()> changed;
};

/// All models of a server: what is loaded, what answers, and what operators may change while it
/// runs (serve/manager.py).
///
/// Thread-safe. Changes block, and belong to threads that may (server/rpc/worker.h), at least one
/// of them for each change that may be under way. Changes of one model happen one after the other,
/// in the order in which they came. Requests meet none of them: they look into route tables that
/// are exchanged as a whole.
class ModelManager : public Router {
 public:
  explicit ModelManager(ManagerParts parts);
  /// Closes what is left and waits for it. No change may be under way.
  ~ModelManager() override;
  ModelManager(const ModelManager&) = delete;
  ModelManager& operator=(const ModelManager&) = delete;

  Route Find(std::string_view model, std::string_view version, double draw) const override;

  /// Whether a version of the model serves. Without a model: whether the first look through the
  /// repository has ended and at least one serves. A model that is new, or broken, says nothing
  /// against a server that answers for others. Quick.
  bool IsReady(std::string_view model = "") const;
  /// Sees that models have versions that answer: all (`every`), or one at least. Throws
  /// NotServingError.
  void CheckServing(bool every) const;
  /// Every model, by name.
  std::vector<ModelStatus> statuses() const;
  /// Their names, sorted. Quick.
  std::vector<std::string> names() const;

  /// Loads a version (the newest, if empty), warms it up, and lets the routing take it in. What
  /// serves goes on serving meanwhile. A version that the routing does not need stays in memory
  /// until it is unloaded; requests may name it. Throws Error: kModelNotFound, kModelChange; here
  /// and below kDraining where the server is stopping.
  ModelVersionStatus Load(const std::string& name, const std::string& version = "");
  /// Takes a version (all, if empty: the model then answers no more) out of the routing, answers
  /// what it has accepted, and frees its memory. It is not loaded again before an operator asks for
  /// it, and its deltas are forgotten. Throws Error: kModelNotFound, kModelChange (the routing is
  /// pinned to it).
  void Unload(const std::string& name, const std::string& version = "");
  /// Loads what a routing needs (which was checked), then goes over to it in one step. Throws
  /// Error: kModelNotFound, kModelChange; nothing has changed then.
  ModelStatus SetRouting(const std::string& name, const Routing& routing);
  /// Back to the routing and the version before the last change. Twice is back again. The version
  /// is pinned: a newer one does not take over before SetRouting says "latest". It waits for no
  /// other change where the version is in memory; a SetRouting that is on its way then fails.
  /// Throws Error: kModelNotFound, kModelChange; nothing has changed then.
  ModelStatus Rollback(const std::string& name);
  /// Exchanges rows of a loaded version (the one that serves, if empty) in place, between batches.
  /// `file_name`: of a file in the model's folder of deltas. Throws Error: kModelNotFound,
  /// kModelChange, kRequest; nothing has changed then.
  ModelVersionStatus ApplyDelta(const std::string& name, const std::string& version,
                                const std::string& file_name);
  /// Looks through the repository for models and versions, and loads what the routing of each
  /// wants. What cannot be loaded, or read, stands in the log and in the statuses; everything else
  /// goes on.
  void Rescan();

  /// Takes no further requests, answers all that were accepted, and frees everything. Whether that
  /// was done until then (MonotonicSeconds). A version that is being loaded has accepted nothing:
  /// it is given a moment, and then left. May be called again, to wait longer.
  bool Close(double until_s);

 private:
  struct Snapshot;
  using Models = std::map<std::string, std::shared_ptr<ManagedModel>>;

  void RescanAll();
  template <typename Function>
  auto Change(const std::shared_ptr<ManagedModel>& model, Function&& change);
  /// A model that may have come to the repository since that was last looked through.
  std::shared_ptr<ManagedModel> ModelToLoad(const std::string& name);
  // With the monitor held.
  std::shared_ptr<ManagedModel> Added(const std::string& name);
  std::shared_ptr<ManagedModel> Known(const std::string& name) const;
  /// Brings a model back that was removed, because it had nothing, before a change's turn came.
  void Keep(const std::shared_ptr<ManagedModel>& model);
  void RescanModel(const std::shared_ptr<ManagedModel>& model);
  void RemoveIfGone(const std::shared_ptr<ManagedModel>& model);
  void Publish(std::shared_ptr<const RouteTable> table);
  /// Lets requests see it.
  template <typename Edit>
  void Show(Edit&& edit);
  std::shared_ptr<const Snapshot> snapshot() const;
  [[noreturn]] void RefuseModel(std::string_view model) const;

  std::function<const ModelSettings&(const std::string&)> settings_of_;
  /// Exchanged with std::atomic_store, read with std::atomic_load.
  std::shared_ptr<const Snapshot> snapshot_;
  // What follows is guarded by the workshop's monitor.
  mutable Workshop shop_;
  std::condition_variable_any all_changed_;
  std::int64_t num_changes_ = 0;
  bool is_closed_ = false;
  bool is_rescan_waiting_ = false;
  /// Taken by whoever looks through the repository.
  Turns rescans_;
  /// The last member: its versions use the others until they have left.
  Models models_;
};

}  // namespace recsys

#endif  // RECSYS_SERVER_MODELS_MANAGER_H_
