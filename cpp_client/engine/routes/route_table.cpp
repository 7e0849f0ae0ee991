#include "engine/routes/route_table.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/hash/xxh64.h"
#include "base/text.h"
#include "recsys/error.h"

namespace recsys {
namespace {

constexpr std::size_t kMaxShownChars = 64;
constexpr std::size_t kMaxShownNames = 8;

void CheckShare(const char* name, const std::string& version, double share) {
  if (share >= 0 && share <= 1 && (share == 0 || !version.empty())) return;
  throw Error(ErrorKind::kConfig, std::string(name) + ": got " + ReprFloat(share) +
                                      ", expected 0 to 1, and 0 where there is no version");
}

[[noreturn]] void RefuseUnknown(std::string_view model, const std::vector<std::string>& known) {
  std::string expected = "but there is none";
  if (known.size() == 1) {
    expected = "expected " + Repr(known[0]) + " (or nothing: there is only one)";
  } else if (!known.empty()) {
    expected = "expected one of ";
    for (std::size_t i = 0; i < std::min(known.size(), kMaxShownNames); ++i) {
      expected += (i == 0 ? "" : ", ") + Repr(known[i]);
    }
  }
  throw Error(ErrorKind::kModelNotFound,
              "model: got " + Repr(FirstChars(model, kMaxShownChars)) + ", " + expected);
}

/// Returns a draw mapped into the range above a share.
double Outside(double share, double draw) { return share + draw * (1 - share); }

/// See keyed_draw in serve/engine/routes.py.
double KeyedDraw(std::string_view model, std::int64_t key) {
  std::string bytes(sizeof(key), '\0');
  std::memcpy(bytes.data(), &key, sizeof(key));
  bytes += model;
  return static_cast<double>(Xxh64(bytes) >> 11) * 0x1.0p-53;
}

}  // namespace

RouteTable::RouteTable(RouteSpec spec, const std::vector<std::shared_ptr<Servable>>& versions,
                       std::shared_ptr<const Shadow> shadow)
    : spec_(std::move(spec)), shadow_(std::move(shadow)) {
  if (spec_.model.empty()) {
    throw Error(ErrorKind::kConfig, "model: got an empty text, expected the name of a model");
  }
  CheckShare("canary_share", spec_.canary, spec_.canary_share);
  CheckShare("shadow_share", spec_.shadow, spec_.shadow_share);
  for (const std::shared_ptr<Servable>& servable : versions) {
    versions_[servable->version()] = servable;
  }
}

std::shared_ptr<const RouteTable> RouteTable::Copy() const {
  auto copy = std::make_shared<RouteTable>(*this);
  for (auto& [name, servable] : copy->versions_) {
    // Shares the ownership of a pointer of its own.
    const auto own = std::make_shared<const std::shared_ptr<Servable>>(servable);
    servable = std::shared_ptr<Servable>(own, own->get());
  }
  return copy;
}

Route RouteTable::Find(const RouteQuery& query) const {
  if (query.version.empty()) {
    double draw = query.draw;
    if (is_keyed()) {
      draw = query.key ? KeyedDraw(spec_.model, *query.key) : Outside(spec_.canary_share, draw);
    }
    const bool is_canary = draw < spec_.canary_share;
    const auto primary = versions_.find(is_canary ? spec_.canary : spec_.serving);
    if (primary == versions_.end()) RefuseModel();
    return {primary->second, ShadowFor(primary->first, draw),
            query.key ? std::string() : spec_.key_feature};
  }
  const auto named = versions_.find(query.version);
  if (named == versions_.end()) RefuseVersion(query.version);
  if (!query.drew_version) return {named->second, nullptr, {}};
  // Map the draw into the range that led to this version.
  const bool is_canary = spec_.canary_share > 0 && named->first == spec_.canary;
  const double draw =
      is_canary ? query.draw * spec_.canary_share : Outside(spec_.canary_share, query.draw);
  return {named->second, ShadowFor(named->first, draw), {}};
}

std::shared_ptr<const Shadow> RouteTable::ShadowFor(const std::string& version, double draw) const {
  return draw >= 1 - spec_.shadow_share && version != spec_.shadow ? shadow_ : nullptr;
}

void RouteTable::RefuseVersion(std::string_view version) const {
  if (spec_.loading.count(std::string(version)) > 0) {
    throw Error(ErrorKind::kNotReady, "version " + Repr(version) + " of model " +
                                          Repr(spec_.model) + " is being loaded; try again later");
  }
  throw Error(ErrorKind::kModelNotFound,
              "version: got " + Repr(FirstChars(version, kMaxShownChars)) + " of model " +
                  Repr(spec_.model) +
                  ", expected one that is loaded, or nothing for the one that serves");
}

void RouteTable::RefuseModel() const {
  if (spec_.is_unloaded) {
    throw Error(ErrorKind::kModelNotFound, "model: got " + Repr(spec_.model) +
                                               ", which was unloaded, expected one that is loaded");
  }
  if (spec_.loading.count(spec_.serving) > 0) RefuseVersion(spec_.serving);
  if (!spec_.serving.empty()) {
    throw Error(ErrorKind::kNotReady, "model " + Repr(spec_.model) + " is pinned to version " +
                                          Repr(spec_.serving) +
                                          ", which is not loaded; load it, or route the model to "
                                          "another version");
  }
  throw Error(ErrorKind::kNotReady,
              "model " + Repr(spec_.model) + " has no version that is ready; try again later");
}

/// Immutable: changes replace it.
struct Routes::Snapshot {
  std::map<std::string, std::shared_ptr<const RouteTable>, std::less<>> tables;
  /// The table for requests that name no model; null for none.
  std::shared_ptr<const RouteTable> only;
  /// Whether a model was ever published or withdrawn.
  bool has_begun = false;

  std::shared_ptr<const Snapshot> Copy() const {
    auto copy = std::make_shared<Snapshot>();
    for (const auto& [name, table] : tables) {
      copy->tables[name] = table->Copy();
      if (table == only) copy->only = copy->tables[name];
    }
    copy->has_begun = has_begun;
    return copy;
  }
  /// Returns the table of a model, of the only one without a name; null if there is none.
  const RouteTable* Of(std::string_view model) const {
    if (model.empty()) return only.get();
    const auto found = tables.find(model);
    return found == tables.end() ? nullptr : found->second.get();
  }
};

template <typename Change>
void Routes::Exchange(Change change) {
  // Freed after the lock: the old snapshots may hold the last reference to a version.
  std::vector<std::shared_ptr<const Snapshot>> old;
  const std::lock_guard<std::mutex> lock(mutex_);
  auto next = std::make_shared<Snapshot>(*snapshot_);
  next->has_begun = true;
  change(next.get());
  has_key_headers_ = std::any_of(next->tables.begin(), next->tables.end(), [](const auto& table) {
    return !table.second->spec().key_header.empty();
  });
  for (std::size_t i = 0; i < kNumStripes; ++i) {
    std::shared_ptr<const Snapshot> copy = next->Copy();
    const std::lock_guard<std::mutex> guard(seen_[i].mutex);
    old.push_back(std::exchange(seen_[i].snapshot, std::move(copy)));
  }
  old.push_back(std::exchange(snapshot_, std::move(next)));
}

Routes::Routes() : snapshot_(std::make_shared<const Snapshot>()) {
  for (std::size_t i = 0; i < kNumStripes; ++i) seen_[i].snapshot = snapshot_;
}

std::shared_ptr<const Routes::Snapshot> Routes::Here() const {
  const Seen& seen = seen_[ThisStripe()];
  const std::lock_guard<std::mutex> lock(seen.mutex);
  return seen.snapshot;
}

Route Routes::Find(const RouteQuery& query) const {
  const std::shared_ptr<const Snapshot> seen = Here();
  if (const RouteTable* table = seen->Of(query.model)) return table->Find(query);
  if (!seen->has_begun) {
    throw Error(ErrorKind::kNotReady, "no model is ready yet; try again later");
  }
  std::vector<std::string> known;
  for (const auto& [name, table] : seen->tables) known.push_back(name);
  RefuseUnknown(query.model, known);
}

std::string Routes::KeyHeader(std::string_view model) const {
  if (!has_key_headers_) return {};
  const std::shared_ptr<const Snapshot> seen = Here();
  const RouteTable* const table = seen->Of(model);
  return table == nullptr ? std::string() : table->spec().key_header;
}

void Routes::Publish(std::shared_ptr<const RouteTable> table) {
  Exchange([&table](Snapshot* next) {
    const std::string& model = table->spec().model;
    if (table->spec().is_only) {
      next->only = table;
    } else if (next->only && next->only->spec().model == model) {
      next->only = nullptr;
    }
    next->tables[model] = std::move(table);
  });
}

void Routes::Withdraw(const std::string& model) {
  Exchange([&model](Snapshot* next) {
    next->tables.erase(model);
    if (next->only && next->only->spec().model == model) next->only = nullptr;
  });
}

void Routes::Clear() {
  Exchange([](Snapshot* next) {
    next->tables.clear();
    next->only = nullptr;
  });
}

}  // namespace recsys
