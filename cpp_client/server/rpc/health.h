#ifndef RECSYS_SERVER_RPC_HEALTH_H_
#define RECSYS_SERVER_RPC_HEALTH_H_

#include <memory>
#include <string>

#include "server/rpc/service.h"

namespace recsys {

/// grpc.health.v1.Health: who serves, as others say; Check asks, Watch follows. Thread-safe.
class Health {
 public:
  static constexpr const char* kServiceName = "grpc.health.v1.Health";

  Health();
  ~Health();
  Health(const Health&) = delete;
  Health& operator=(const Health&) = delete;

  /// Whether a service (empty for the server) answers; before the first time it is unknown.
  /// Watchers are told. Without effect after Shutdown.
  void Set(const std::string& service, bool is_serving);
  /// From now on nothing that was ever set serves.
  void Shutdown();
  /// The methods, for a port; they may outlive this.
  Service MakeService() const;

 private:
  struct State;
  class Watcher;
  static std::shared_ptr<UnaryHandler> Check(State* state, const std::shared_ptr<UnaryCall>& call,
                                             const Bytes& request);

  std::shared_ptr<State> state_;
};

}  // namespace recsys

#endif  // RECSYS_SERVER_RPC_HEALTH_H_
