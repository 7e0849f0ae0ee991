#include "server/models/manager.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <mutex>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "base/utf8.h"

namespace recsys {
namespace {

// So many names of models stand in an error text.
constexpr std::size_t kMaxNames = 8;
constexpr std::size_t kMaxToldChars = 64;
// How long changes that are under way may take when the server ends.
constexpr std::chrono::seconds kLastWords{1};
// A year: what comes later is not waited for any longer.
constexpr double kLongS = 366.0 * 24 * 3600;

std::string NamesOf(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t at = 0; at < std::min(names.size(), kMaxNames); ++at) {
    text += (at == 0 ? "" : ", ") + Repr(names[at]);
  }
  return text;
}

std::chrono::steady_clock::time_point TimePoint(double until_s) {
  const double left_s = std::clamp(until_s - MonotonicSeconds(), 0.0, kLongS);
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(
             std::chrono::duration<double>(left_s));
}

}  // namespace

/// What requests see. Never changes: a new one takes its place.
struct ModelManager::Snapshot {
  std::map<std::string, std::shared_ptr<const RouteTable>, std::less<>> tables;
  /// Where there is only one.
  std::shared_ptr<const RouteTable> only;
  /// Whether the repository was looked through, perhaps in vain.
  bool has_looked = false;
  /// Whether the first look through the repository has ended.
  bool has_started = false;
};

ModelManager::ModelManager(ManagerParts parts)
    : settings_of_(std::move(parts.settings_of)),
      snapshot_(std::make_shared<const Snapshot>()),
      shop_(std::move(parts.changed)) {
  shop_.source = std::move(parts.source);
  shop_.host = std::move(parts.host);
  shop_.set_state = std::move(parts.set_state);
  shop_.publish = [this](std::shared_ptr<const RouteTable> table) { Publish(std::move(table)); };
}

ModelManager::~ModelManager() { Close(std::numeric_limits<double>::infinity()); }

Route ModelManager::Find(std::string_view model, std::string_view version, double draw) const {
  const auto seen = snapshot();
  if (model.empty()) {
    if (seen->only) return seen->only->Find(version, draw);
  } else {
    const auto found = seen->tables.find(model);
    if (found != seen->tables.end()) return found->second->Find(version, draw);
  }
  RefuseModel(model);
}

bool ModelManager::IsReady(std::string_view model) const {
  const auto seen = snapshot();
  if (!model.empty()) {
    const auto found = seen->tables.find(model);
    return found != seen->tables.end() && !found->second->plan.serving.empty();
  }
  return seen->has_started &&
         std::any_of(seen->tables.begin(), seen->tables.end(),
                     [](const auto& named) { return !named.second->plan.serving.empty(); });
}

void ModelManager::CheckServing(bool every) const {
  const std::vector<ModelStatus> all = statuses();
  if (all.empty()) throw NotServingError("there is no model to serve", false);
  std::vector<std::string> lacking;
  std::string reasons;
  bool is_unusable = true;
  for (const ModelStatus& status : all) {
    if (!status.serving.empty()) continue;
    lacking.push_back(status.model);
    for (const ModelVersionStatus& version : status.versions) {
      if (version.reason.empty()) continue;
      reasons += (reasons.empty() ? "" : "; ") + status.model + " " + version.version + ": " +
                 version.reason;
      is_unusable = is_unusable && version.is_unusable;
    }
  }
  if (lacking.size() < all.size() && !(every && !lacking.empty())) return;
  throw NotServingError("no version could be made ready of " + NamesOf(lacking) + ": " +
                            (reasons.empty() ? "there is none" : reasons),
                        is_unusable && !reasons.empty());
}

std::vector<ModelStatus> ModelManager::statuses() const {
  const std::lock_guard<Monitor> lock(shop_.monitor);
  std::vector<ModelStatus> all;
  for (const auto& [name, model] : models_) all.push_back(model->Status());
  return all;
}

std::vector<std::string> ModelManager::names() const {
  const auto seen = snapshot();
  std::vector<std::string> names;
  for (const auto& [name, table] : seen->tables) names.push_back(name);
  return names;
}

template <typename Function>
auto ModelManager::Change(const std::shared_ptr<ManagedModel>& model, Function&& change) {
  const std::lock_guard<Turns> turn(model->turns());
  const std::lock_guard<Monitor> lock(shop_.monitor);
  if (is_closed_) throw Error(ErrorKind::kDraining, "the server is stopping");
  Keep(model);
  struct Counted {
    explicit Counted(ModelManager& manager) : of(manager) { ++of.num_changes_; }
    ~Counted() {
      --of.num_changes_;
      of.all_changed_.notify_all();
    }
    ModelManager& of;
  };
  const Counted counted(*this);
  return change();
}

ModelVersionStatus ModelManager::Load(const std::string& name, const std::string& version) {
  const auto model = ModelToLoad(name);
  return Change(model, [&] { return model->Load(version); });
}

void ModelManager::Unload(const std::string& name, const std::string& version) {
  const auto model = [&] {
    const std::lock_guard<Monitor> lock(shop_.monitor);
    return Known(name);
  }();
  Change(model, [&] { model->Unload(version); });
}

ModelStatus ModelManager::SetRouting(const std::string& name, const Routing& routing) {
  const auto model = ModelToLoad(name);
  const auto num_rollbacks = [&] {
    const std::lock_guard<Monitor> lock(shop_.monitor);
    return model->num_rollbacks();
  }();
  return Change(model, [&] {
    model->SetRouting(routing, num_rollbacks);
    return model->Status();
  });
}

ModelStatus ModelManager::Rollback(const std::string& name) {
  std::shared_ptr<ManagedModel> model;
  {
    const std::lock_guard<Monitor> lock(shop_.monitor);
    model = Known(name);
    if (!is_closed_ && model->turns().is_taken() && model->RollbackAtOnce()) {
      return model->Status();
    }
  }
  return Change(model, [&] {
    model->Rollback();
    return model->Status();
  });
}

ModelVersionStatus ModelManager::ApplyDelta(const std::string& name, const std::string& version,
                                            const std::string& file_name) {
  const auto model = [&] {
    const std::lock_guard<Monitor> lock(shop_.monitor);
    return Known(name);
  }();
  return Change(model, [&] { return model->ApplyDelta(version, file_name); });
}

void ModelManager::Rescan() {
  {
    const std::lock_guard<Monitor> lock(shop_.monitor);
    if (is_rescan_waiting_) return;
    is_rescan_waiting_ = true;
  }
  const std::lock_guard<Turns> turn(rescans_);
  {
    const std::lock_guard<Monitor> lock(shop_.monitor);
    is_rescan_waiting_ = false;
  }
  RescanAll();
}

void ModelManager::RescanAll() {
  std::vector<std::string> found;
  try {
    found = shop_.source->Names();
  } catch (const std::system_error& error) {
    const std::lock_guard<Monitor> lock(shop_.monitor);
    Show([](Snapshot& next) { next.has_looked = true; });
    Log(LogLevel::kError, std::string("the repository cannot be read: ") + error.what() +
                              "; what is loaded goes on serving");
    return;
  }
  Models models;
  {
    const std::lock_guard<Monitor> lock(shop_.monitor);
    Show([](Snapshot& next) { next.has_looked = true; });
    for (const std::string& name : found) Added(name);
    models = models_;
  }
  // Those that somebody changes may take long, and keep no other waiting.
  std::vector<std::shared_ptr<ManagedModel>> busy;
  for (const auto& [name, model] : models) {
    if (model->turns().is_taken()) {
      busy.push_back(model);
    } else {
      RescanModel(model);
    }
  }
  for (const auto& model : busy) RescanModel(model);
  const std::lock_guard<Monitor> lock(shop_.monitor);
  if (snapshot()->has_started) return;
  Show([](Snapshot& next) { next.has_started = true; });
  shop_.monitor.Changed();
}

void ModelManager::RescanModel(const std::shared_ptr<ManagedModel>& model) {
  try {
    Change(model, [&] { model->Rescan(); });
  } catch (const std::system_error& error) {
    Log(LogLevel::kError,
        "model " + model->name() + ": its folder cannot be read: " + error.what());
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kDraining) return;
    Log(LogLevel::kError, "model " + model->name() + ": " + error.what());
  }
  const std::lock_guard<Monitor> lock(shop_.monitor);
  RemoveIfGone(model);
}

void ModelManager::RemoveIfGone(const std::shared_ptr<ManagedModel>& model) {
  if (!model->is_gone() || model->turns().is_taken()) return;
  const auto found = models_.find(model->name());
  if (found == models_.end() || found->second != model) return;
  models_.erase(found);
  Show([&model](Snapshot& next) { next.tables.erase(model->name()); });
  shop_.monitor.Changed();
}

bool ModelManager::Close(double until_s) {
  const auto until = TimePoint(until_s);
  std::vector<std::shared_future<void>> leaving;
  {
    const std::lock_guard<Monitor> lock(shop_.monitor);
    is_closed_ = true;
    for (const auto& [name, model] : models_) {
      for (const auto& has_left : model->Close()) leaving.push_back(has_left);
    }
  }
  bool is_done = true;
  for (const auto& has_left : leaving) {
    is_done = has_left.wait_until(until) == std::future_status::ready && is_done;
  }
  {
    std::unique_lock<Monitor> lock(shop_.monitor);
    all_changed_.wait_for(lock, kLastWords, [this] { return num_changes_ == 0; });
  }
  if (is_done) shop_.comparer->Close();
  return is_done;
}

std::shared_ptr<ManagedModel> ModelManager::ModelToLoad(const std::string& name) {
  {
    const std::lock_guard<Monitor> lock(shop_.monitor);
    const auto found = models_.find(name);
    if (found != models_.end()) return found->second;
  }
  const std::vector<std::string> there = shop_.source->Names();
  const std::lock_guard<Monitor> lock(shop_.monitor);
  if (std::find(there.begin(), there.end(), name) != there.end()) return Added(name);
  return Known(name);
}

std::shared_ptr<ManagedModel> ModelManager::Added(const std::string& name) {
  std::shared_ptr<ManagedModel>& model = models_[name];
  if (!model) {
    model = std::make_shared<ManagedModel>(name, settings_of_(name), shop_);
    RouteTable table;
    table.model = name;
    Publish(std::make_shared<const RouteTable>(std::move(table)));
  }
  return model;
}

void ModelManager::Keep(const std::shared_ptr<ManagedModel>& model) {
  std::shared_ptr<ManagedModel>& known = models_[model->name()];
  if (known == model) return;
  if (known) {
    throw Error(ErrorKind::kModelChange, "model " + Repr(model->name()) +
                                             " was removed meanwhile, and came back; try again");
  }
  known = model;
  RouteTable table;
  table.model = model->name();
  Publish(std::make_shared<const RouteTable>(std::move(table)));
}

std::shared_ptr<ManagedModel> ModelManager::Known(const std::string& name) const {
  const auto found = models_.find(name);
  if (found == models_.end()) RefuseModel(name);
  return found->second;
}

void ModelManager::Publish(std::shared_ptr<const RouteTable> table) {
  Show([&table](Snapshot& next) { next.tables[table->model] = table; });
  shop_.monitor.Changed();
}

template <typename Edit>
void ModelManager::Show(Edit&& edit) {
  auto next = std::make_shared<Snapshot>(*snapshot());
  edit(*next);
  next->only = next->tables.size() == 1 ? next->tables.begin()->second : nullptr;
  std::atomic_store(&snapshot_, std::shared_ptr<const Snapshot>(std::move(next)));
}

std::shared_ptr<const ModelManager::Snapshot> ModelManager::snapshot() const {
  return std::atomic_load(&snapshot_);
}

void ModelManager::RefuseModel(std::string_view model) const {
  if (!snapshot()->has_looked) {
    throw Error(ErrorKind::kNotReady, "no model is ready yet; try again later");
  }
  const std::vector<std::string> known = names();
  std::string expected = "but there is none";
  if (known.size() == 1) {
    expected = "expected " + Repr(known[0]) + " (or nothing: there is only one)";
  } else if (!known.empty()) {
    expected = "expected one of " + NamesOf(known);
  }
  throw Error(ErrorKind::kModelNotFound,
              "model: got " + Repr(FirstChars(model, kMaxToldChars)) + ", " + expected);
}

}  // namespace recsys
