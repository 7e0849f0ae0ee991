#ifndef RECSYS_ENGINE_CALLS_HEALTH_H_
#define RECSYS_ENGINE_CALLS_HEALTH_H_

#include <memory>
#include <string>

#include "port/service.h"

namespace recsys {

/// The service grpc.health.v1.Health. Thread-safe.
class Health {
 public:
  static constexpr const char* kServiceName = "grpc.health.v1.Health";

  Health();
  ~Health();
  Health(const Health&) = delete;
  Health& operator=(const Health&) = delete;

  /// Sets the status of a service (empty for the whole server), which is unknown before that, and
  /// notifies its watchers. Has no effect after Shutdown.
  void Set(const std::string& service, bool is_serving);
  /// Sets every known service to NOT_SERVING, permanently.
  void Shutdown();
  /// Returns the methods for a port; they may outlive this object.
  Service MakeService() const;

 private:
  struct State;
  class Watcher;
  static std::shared_ptr<UnaryHandler> Check(State* state, const std::shared_ptr<UnaryCall>& call,
                                             const Bytes& request);

  std::shared_ptr<State> state_;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_CALLS_HEALTH_H_
