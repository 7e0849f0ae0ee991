#ifndef RECSYS_SERVER_HTTP_REST_ROUTE_H_
#define RECSYS_SERVER_HTTP_REST_ROUTE_H_

#include <optional>
#include <string>

#include "server/http/http_message.h"

namespace recsys {

/// What addresses of the REST form stand for.
enum class RestAction {
  kServer,
  kLive,
  kReady,
  kIndex,
  kMetadata,
  kModelReady,
  kConfig,
  kStatistics,
  kInfer,
  kPredict,
};

/// An address, taken apart.
struct RestRoute {
  RestAction action = RestAction::kServer;
  /// As the address names them; empty where it does not.
  std::string model;
  std::string version;

  /// Whether it is asked for with POST; else with GET, or HEAD.
  bool is_post() const {
    return action == RestAction::kIndex || action == RestAction::kInfer ||
           action == RestAction::kPredict;
  }
  /// Whether requests for predictions come so, which are counted.
  bool is_inference() const {
    return action == RestAction::kInfer || action == RestAction::kPredict;
  }
};

/// None where there is no such address.
std::optional<RestRoute> FindRoute(const std::string& path);

/// How long the client waits, as the address's query says (`timeout_ms`); none where it does not.
/// Throws Error (kRequest): it says something else.
std::optional<double> TimeoutOf(const std::string& query);

/// A whole number of at most twelve digits. Throws Error (kRequest).
std::int64_t WholeNumber(const std::string& field, const std::string& text);

}  // namespace recsys

#endif  // RECSYS_SERVER_HTTP_REST_ROUTE_H_
