#ifndef RECSYS_REST_REST_PORT_H_
#define RECSYS_REST_REST_PORT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "engine/core/gateway.h"
#include "port/polling/loops.h"
#include "port/port_state.h"
#include "rest/handed_file.h"

namespace recsys {

namespace http2 {
class Listener;
}

/// State of an HTTP port.
struct RestPortState final : http2::PortState, std::enable_shared_from_this<RestPortState> {
  using PortState::PortState;
  std::unique_ptr<http2::Polled> Open(http2::Loop* loop, std::int64_t id, FileHandle file) override;

  Gateway* gateway = nullptr;
  const Router* router = nullptr;
  /// Largest JSON of a body.
  std::int64_t max_json_bytes = 0;
  /// Takes over a connection, with what it has sent. Must be fast.
  std::function<void(std::shared_ptr<HandedFile>, std::string)> hand_over;
};

/// An HTTP/1.1 port that answers predictions. A connection that sends any other request, or one
/// that RequestHead or JsonReader do not take, is handed over to the engine's owner, with what it
/// has sent: so errors, and whatever is rare, have one implementation.
class RestPort {
 public:
  /// Accepts the connections of a listening socket. `state` has all its fields.
  RestPort(FileHandle listening, std::shared_ptr<RestPortState> state,
           std::shared_ptr<http2::Loops> loops);
  /// Ends its connections, but for those handed over.
  ~RestPort();

  /// A connection that was handed over is closed.
  void Released() { --state_->num_connections; }
  bool WaitUntilIdle(double until_s) { return state_->open_calls.WaitUntilNone(until_s); }

 private:
  const std::shared_ptr<RestPortState> state_;
  const std::shared_ptr<http2::Loops> loops_;
  std::unique_ptr<http2::Listener> listener_;
};

}  // namespace recsys

#endif  // RECSYS_REST_REST_PORT_H_
