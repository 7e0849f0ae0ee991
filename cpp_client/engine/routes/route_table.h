#ifndef RECSYS_ENGINE_ROUTES_ROUTE_TABLE_H_
#define RECSYS_ENGINE_ROUTES_ROUTE_TABLE_H_

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/gateway.h"
#include "engine/core/servable.h"
#include "engine/core/shadow.h"
#include "engine/settings/settings.h"

namespace recsys {

/// The versions of one model that answer. Never changes: a new table takes its place.
class RouteTable {
 public:
  /// `versions`: all that are ready; `shadow` is null where the spec names none that is.
  RouteTable(RouteSpec spec, const std::vector<std::shared_ptr<Servable>>& versions,
             std::shared_ptr<const Shadow> shadow);

  /// Throws Error: kModelNotFound, kNotReady. One draw decides about both shares: the canary takes
  /// the lowest draws, the shadow the highest. So a shadow is compared with the serving version,
  /// and with the canary only where both shares exceed all requests.
  Route Find(const RouteQuery& query) const;

  const RouteSpec& spec() const { return spec_; }

 private:
  [[noreturn]] void RefuseVersion(std::string_view version) const;
  [[noreturn]] void RefuseModel() const;
  /// The shadow for a request that `version` answers.
  std::shared_ptr<const Shadow> ShadowFor(const std::string& version, double draw) const;

  const RouteSpec spec_;
  std::map<std::string, std::shared_ptr<Servable>, std::less<>> versions_;
  const std::shared_ptr<const Shadow> shadow_;
};

/// The tables of all models. Thread-safe: requests read a snapshot without a lock of their own.
class Routes : public Router {
 public:
  Routes();

  Route Find(const RouteQuery& query) const override;
  void Publish(std::shared_ptr<const RouteTable> table);
  void Withdraw(const std::string& model);
  /// Forgets all models.
  void Clear();

 private:
  struct Snapshot;
  template <typename Change>
  void Exchange(Change change);

  std::shared_ptr<const Snapshot> snapshot_;
  /// Held by whoever exchanges the snapshot.
  std::mutex mutex_;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_ROUTES_ROUTE_TABLE_H_
