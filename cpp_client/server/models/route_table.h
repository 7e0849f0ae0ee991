#ifndef RECSYS_SERVER_MODELS_ROUTE_TABLE_H_
#define RECSYS_SERVER_MODELS_ROUTE_TABLE_H_

#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "server/core/gateway.h"
#include "server/models/routing.h"

namespace recsys {

/// Versions that are ready, by name.
using HostedMap = std::map<std::string, std::shared_ptr<Hosted>, std::less<>>;

/// The versions of a model that answer: what every request of it is looked up in
/// (serve/route_table.py). Never changes once it is published: a new one takes its place.
struct RouteTable {
  std::string model;
  /// Which version answers requests that name none.
  Plan plan;
  HostedMap hosted;
  /// The version in the shadow; null for none.
  std::shared_ptr<Shadow> shadow;
  /// Versions that will be ready soon.
  std::set<std::string> loading;
  /// Whether an operator has taken the model out of memory.
  bool is_unloaded = false;

  /// Where a request goes; see ModelManager::Find.
  Route Find(std::string_view version, double draw) const;
};

/// Whether both send every request the same way.
bool operator==(const RouteTable& a, const RouteTable& b);

}  // namespace recsys

#endif  // RECSYS_SERVER_MODELS_ROUTE_TABLE_H_
