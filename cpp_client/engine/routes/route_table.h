#ifndef RECSYS_ENGINE_ROUTES_ROUTE_TABLE_H_
#define RECSYS_ENGINE_ROUTES_ROUTE_TABLE_H_

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/stripes.h"
#include "engine/core/gateway.h"
#include "engine/core/servable.h"
#include "engine/core/shadow.h"
#include "engine/settings/settings.h"

namespace recsys {

/// The versions of one model that answer. Immutable: changes replace the table.
class RouteTable {
 public:
  /// `versions`: all that are ready; `shadow` is null unless the spec names one that is ready.
  RouteTable(RouteSpec spec, const std::vector<std::shared_ptr<Servable>>& versions,
             std::shared_ptr<const Shadow> shadow);

  /// Throws Error: kModelNotFound, kNotReady. One draw decides about both shares: the canary takes
  /// the lowest draws, the shadow the highest. So a shadow is compared with the serving version,
  /// and with the canary only if both shares add up to more than all requests.
  Route Find(const RouteQuery& query) const;

  const RouteSpec& spec() const { return spec_; }
  /// Returns a copy whose references to versions are counted apart: threads that route by several
  /// copies do not meet at the counts.
  std::shared_ptr<const RouteTable> Copy() const;

 private:
  bool is_keyed() const { return !spec_.key_feature.empty() || !spec_.key_header.empty(); }
  [[noreturn]] void RefuseVersion(std::string_view version) const;
  [[noreturn]] void RefuseModel() const;
  /// Returns the shadow for a request that `version` answers.
  std::shared_ptr<const Shadow> ShadowFor(const std::string& version, double draw) const;

  const RouteSpec spec_;
  std::map<std::string, std::shared_ptr<Servable>, std::less<>> versions_;
  const std::shared_ptr<const Shadow> shadow_;
};

/// The tables of all models. Thread-safe: requests read a snapshot of their thread's stripe.
class Routes : public Router {
 public:
  Routes();

  Route Find(const RouteQuery& query) const override;
  std::string KeyHeader(std::string_view model) const override;
  void Publish(std::shared_ptr<const RouteTable> table);
  void Withdraw(const std::string& model);
  /// Removes all models.
  void Clear();

 private:
  struct Snapshot;
  template <typename Change>
  void Exchange(Change change);

  struct Seen {
    mutable std::mutex mutex;
    std::shared_ptr<const Snapshot> snapshot;
  };
  /// Returns the snapshot of the calling thread's stripe.
  std::shared_ptr<const Snapshot> Here() const;

  Striped<Seen> seen_;
  /// What the stripes' snapshots are copies of.
  std::shared_ptr<const Snapshot> snapshot_;
  /// Whether a table has a header as key. Every request reads it.
  std::atomic<bool> has_key_headers_{false};
  /// Held while the snapshot is replaced.
  std::mutex mutex_;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_ROUTES_ROUTE_TABLE_H_
