#ifndef RECSYS_SERVER_MODELS_ROUTING_H_
#define RECSYS_SERVER_MODELS_ROUTING_H_

// Which version of a model answers a request, and which one computes it in the shadow: policy alone
// (serve/routing.py).

#include <set>
#include <string>

#include "config/settings.h"

namespace recsys {

/// What Routing::serve is for the newest version that is ready.
inline constexpr char kLatest[] = "latest";

/// Whether version `a` is older than `b`: by number; versions that are no numbers come before, by
/// name.
bool IsOlder(const std::string& a, const std::string& b);

/// Orders versions, the oldest first.
struct OldestFirst {
  bool operator()(const std::string& a, const std::string& b) const { return IsOlder(a, b); }
};

/// The newest version; empty where there is none.
std::string Newest(const std::set<std::string>& versions);

/// Routing, resolved against the versions that are ready: what every request is looked up in.
struct Plan {
  /// Answers what nothing else does; empty where it is not ready.
  std::string serving;
  /// Answers a share; empty for none.
  std::string canary;
  /// Of the requests, 0 to 1.
  double canary_share = 0.0;
  /// Computes a share beside the one that answers; empty for none.
  std::string shadow;
  /// Of the requests, 0 to 1.
  double shadow_share = 0.0;

  /// The version that answers, and the one in the shadow; empty for none.
  struct Choice {
    const std::string& primary;
    bool has_shadow;
  };
  /// One draw, even over [0, 1), decides both: the canary takes the lowest, the shadow the highest.
  /// So a shadow is compared with the version that serves, and with the canary only where both
  /// shares exceed all requests.
  Choice Pick(double draw) const;
};

bool operator==(const Plan& a, const Plan& b);

/// Resolves a routing. "latest" is the newest version that is ready, apart from the canary and the
/// shadow: these see their shares and no more. Where nothing else is ready, the canary answers all,
/// rather than nobody; a shadow never does. A version that is named and not ready is left out;
/// nothing takes the place of a version that was pinned.
Plan MakePlan(const Routing& routing, const std::set<std::string>& ready);

}  // namespace recsys

#endif  // RECSYS_SERVER_MODELS_ROUTING_H_
