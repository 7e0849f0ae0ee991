#include "server/models/managed_model.h"

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "base/utf8.h"
#include "recsys/error.h"
#include "server/models/shadow.h"

namespace recsys {
namespace {

constexpr std::size_t kMaxToldChars = 64;

[[noreturn]] void RefuseChange(const std::string& text) {
  throw Error(ErrorKind::kModelChange, text);
}

std::set<std::string, OldestFirst> OldestFirstOf(const std::set<std::string>& names) {
  return {names.begin(), names.end()};
}

}  // namespace

template <typename Change>
void ManagedModel::AndPublish(Change&& change) {
  try {
    change();
  } catch (...) {
    Publish();
    throw;
  }
  Publish();
}

ManagedModel::ManagedModel(std::string name, const ModelSettings& settings, Workshop& workshop)
    : name_(std::move(name)), settings_(settings), shop_(workshop), routing_(settings.routing) {
  RouteTable table;
  table.model = name_;
  table_ = std::make_shared<const RouteTable>(std::move(table));
  point_ = {routing_, ""};
}

ModelStatus ManagedModel::Status() const {
  ModelStatus status;
  status.model = name_;
  status.routing = routing_;
  status.serving = table_->plan.serving;
  for (const auto& [name, version] : versions_) status.versions.push_back(version->Status());
  return status;
}

void ManagedModel::Rescan() {
  const Files on_disk = Look();
  for (auto at = versions_.begin(); at != versions_.end();) {
    const std::string name = at->first;
    const ModelState state = at->second->state();
    ++at;
    const bool is_out = state == ModelState::kAvailable || state == ModelState::kFailed;
    if (is_out && on_disk.count(name) == 0) Forget(name);
  }
  if (is_unloaded_ || is_closed_) return;
  AndPublish([&] {
    for (const std::string& name : OldestFirstOf(routing_.Named())) {
      const auto files = on_disk.find(name);
      if (files != on_disk.end() && Version(name)->MayBeTried(files->second)) Try(name);
    }
    BringLatest(routing_, on_disk);
  });
}

ModelVersionStatus ManagedModel::Load(std::string name) {
  if (name.empty()) {
    std::set<std::string> names;
    for (const auto& [version, files] : Look()) names.insert(version);
    name = Newest(names);
  }
  if (name.empty()) {
    throw Error(ErrorKind::kModelNotFound,
                "model: got " + Repr(name_) + ", expected one with versions in the repository");
  }
  std::shared_ptr<ManagedVersion> version;
  AndPublish([&] {
    version = Ensure(name);
    is_unloaded_ = false;
    version->set_is_kept(MakePlanNow().serving != name && routing_.Named().count(name) == 0);
  });
  return version->Status();
}

void ManagedModel::Unload(const std::string& name) {
  if (!name.empty() && name == routing_.serve) {
    RefuseChange("version " + Repr(name) + " is the one that the routing of model " + Repr(name_) +
                 " serves: set another routing first, or unload the whole model");
  }
  std::vector<std::shared_ptr<ManagedVersion>> leaving;
  if (!name.empty()) {
    leaving.push_back(Known(name));
  } else {
    for (const auto& [key, version] : versions_) leaving.push_back(version);
  }
  std::set<std::string> names;
  for (const auto& version : leaving) {
    version->set_is_kept(false);
    version->set_is_held_back(!name.empty());
    version->ForgetDeltas();
    names.insert(version->name());
  }
  if (!name.empty()) {
    routing_ = routing_.Without(name);
  } else {
    is_unloaded_ = true;
    previous_.reset();
  }
  Publish(names);
  for (const auto& version : leaving) version->WaitUntilLeft();
}

void ManagedModel::SetRouting(const Routing& routing, std::int64_t num_rollbacks) {
  AndPublish([&] {
    for (const std::string& name : OldestFirstOf(routing.Named())) Ensure(name);
    BringLatest(routing, Look());
    if (num_rollbacks_ != num_rollbacks) {
      RefuseChange("model " + Repr(name_) +
                   " was rolled back meanwhile; set the routing again if wanted");
    }
    if (MakePlan(routing, Ready()).serving.empty()) {
      RefuseChange("model " + Repr(name_) + " has no version that can be loaded");
    }
    routing_ = routing;
    is_unloaded_ = false;
  });
}

void ManagedModel::Rollback() {
  const Routing routing = RoutingBefore();
  AndPublish([&] {
    Ensure(routing.serve);
    for (const std::string& name : routing.Named()) {
      // A canary that is gone must not keep the rollback from happening.
      if (name != routing.serve) Try(name);
    }
    routing_ = routing;
    is_unloaded_ = false;
  });
}

bool ManagedModel::RollbackAtOnce() {
  const Routing routing = RoutingBefore();
  const std::set<std::string> named = routing.Named();
  const std::set<std::string> ready = Ready();
  if (!std::includes(ready.begin(), ready.end(), named.begin(), named.end())) return false;
  ++num_rollbacks_;
  routing_ = routing;
  Publish({}, /*lets_go=*/false);  // The other change does that, when it ends.
  return true;
}

ModelVersionStatus ManagedModel::ApplyDelta(const std::string& name, const std::string& file_name) {
  const auto version = Known(name.empty() ? table_->plan.serving : name);
  version->ApplyDelta(file_name);
  return version->Status();
}

std::vector<std::shared_future<void>> ManagedModel::Close() {
  is_closed_ = true;
  std::vector<std::shared_future<void>> leaving;
  for (const auto& [name, version] : versions_) {
    version->Close();
    if (version->has_left().valid()) leaving.push_back(version->has_left());
  }
  return leaving;
}

ManagedModel::Files ManagedModel::Look() {
  Files on_disk = shop_.monitor.Blocking([this] {
    Files found;
    for (const std::string& name : shop_.source->Versions(name_)) {
      try {
        found[name] = FingerprintOf(shop_.source->Path(name_, name));
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::kModelNotFound) throw;  // Else: deleted just now.
      }
    }
    return found;
  });
  for (const auto& [name, files] : on_disk) Version(name);
  return on_disk;
}

std::shared_ptr<ManagedVersion> ManagedModel::Version(const std::string& name) {
  std::shared_ptr<ManagedVersion>& version = versions_[name];
  if (!version) version = std::make_shared<ManagedVersion>(name_, name, settings_, shop_);
  return version;
}

std::shared_ptr<ManagedVersion> ManagedModel::Known(const std::string& name) const {
  const auto found = versions_.find(name);
  if (found == versions_.end()) {
    throw Error(ErrorKind::kModelNotFound, "version: got " + Repr(FirstChars(name, kMaxToldChars)) +
                                               ", expected one of model " + Repr(name_));
  }
  return found->second;
}

Routing ManagedModel::RoutingBefore() const {
  if (!previous_) {
    RefuseChange("model " + Repr(name_) + " has had no other routing or version to go back to");
  }
  return previous_->routing.Pinned(previous_->serving);
}

void ManagedModel::Forget(const std::string& name) {
  versions_.erase(name);
  if (shop_.set_state) shop_.set_state(name_, name, NameOf(ModelState::kAvailable));
}

std::set<std::string> ManagedModel::Ready() const {
  std::set<std::string> ready;
  for (const auto& [name, version] : versions_) {
    if (version->is_ready()) ready.insert(name);
  }
  return ready;
}

void ManagedModel::BringLatest(const Routing& routing, const Files& on_disk) {
  if (routing.serve != kLatest) return;
  std::set<std::string> names;
  for (const auto& [name, files] : on_disk) {
    if (Version(name)->MayBeTried(files)) names.insert(name);
  }
  while (!is_closed_) {
    std::set<std::string> candidates = Ready();
    candidates.insert(names.begin(), names.end());
    candidates.erase(routing.canary);
    candidates.erase(routing.shadow);
    const std::string best = Newest(candidates);
    if (best.empty() || Try(best)) return;
    names.erase(best);
  }
}

bool ManagedModel::Try(const std::string& name) {
  try {
    LoadVersion(name);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kModelChange || error.kind() == ErrorKind::kModelNotFound) {
      return false;
    }
    throw;
  }
  return true;
}

std::shared_ptr<ManagedVersion> ManagedModel::Ensure(const std::string& name) {
  auto version = LoadVersion(name);
  version->set_is_held_back(false);
  return version;
}

std::shared_ptr<ManagedVersion> ManagedModel::LoadVersion(const std::string& name) {
  auto version = Version(name);
  RouteTable table = *table_;
  table.loading.clear();
  if (!version->is_ready()) table.loading.insert(name);
  PublishTable(std::move(table));
  try {
    version->Load();
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kModelNotFound) Forget(name);
    throw;
  }
  return version;
}

Plan ManagedModel::MakePlanNow() const {
  return MakePlan(routing_, is_unloaded_ ? std::set<std::string>() : Ready());
}

bool ManagedModel::IsNeeded(const std::string& name) const {
  return name == point_.serving || routing_.Named().count(name) > 0 ||
         (previous_ && settings_.keep_previous && previous_->serving == name);
}

void ManagedModel::Publish(const std::set<std::string>& leaving, bool lets_go) {
  std::vector<std::shared_ptr<ManagedVersion>> left;
  for (const auto& [name, version] : versions_) {
    if (!version->is_ready() || leaving.count(name) == 0) continue;
    version->Leave();
    left.push_back(version);
  }
  RouteTable table;
  table.model = name_;
  table.plan = MakePlanNow();
  table.is_unloaded = is_unloaded_;
  Remember(table.plan);
  for (const auto& [name, version] : versions_) {
    if (!version->is_ready()) continue;
    if (lets_go && !version->is_kept() && !IsNeeded(name)) {
      version->Leave();
      left.push_back(version);
    } else if (version->hosted()) {
      table.hosted[name] = version->hosted();
    }
  }
  table.shadow = ShadowOf(table.plan.shadow, table.hosted);
  PublishTable(std::move(table));
  for (const auto& version : left) version->Drain();
}

void ManagedModel::Remember(const Plan& plan) {
  const bool is_other = plan.serving != point_.serving || !(routing_ == point_.routing);
  if (is_other && !point_.serving.empty() && !plan.serving.empty()) previous_ = point_;
  point_ = {routing_, plan.serving};
}

std::shared_ptr<Shadow> ManagedModel::ShadowOf(const std::string& name,
                                               const HostedMap& hosted) const {
  const auto found = hosted.find(name);
  if (found == hosted.end()) return nullptr;
  const auto last = std::static_pointer_cast<VersionShadow>(table_->shadow);
  if (last && last->IsFor(found->second, hosted)) return last;
  return std::make_shared<VersionShadow>(found->second, shop_.comparer, hosted);
}

void ManagedModel::PublishTable(RouteTable table) {
  if (table == *table_) return;
  table_ = std::make_shared<const RouteTable>(std::move(table));
  shop_.publish(table_);
}

}  // namespace recsys
