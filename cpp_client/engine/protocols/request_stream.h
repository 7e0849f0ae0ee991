#ifndef RECSYS_ENGINE_PROTOCOLS_REQUEST_STREAM_H_
#define RECSYS_ENGINE_PROTOCOLS_REQUEST_STREAM_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "engine/core/gateway.h"
#include "engine/protocols/protocol_request.h"
#include "port/service.h"

namespace recsys {

/// How a protocol's streams work.
struct StreamRules {
  /// Returns a new, empty request.
  std::function<std::shared_ptr<ProtocolRequest>()> make;
  /// Whether answers are sent in the order of the requests, or as they are ready.
  bool in_order = false;
  /// Maximum requests whose answers were not sent yet; no more are read meanwhile.
  std::int64_t max_requests = 64;
};

/// The server's side of a stream of requests. If a client sends and never reads, answers cannot be
/// sent, their requests count as unanswered, and no further message is read. Thread-safe.
class RequestStream : public StreamHandler, public std::enable_shared_from_this<RequestStream> {
 public:
  RequestStream(Gateway& gateway, std::shared_ptr<StreamCall> call, StreamRules rules);

  /// Requests the first message.
  void Start() { call_->Read(); }
  /// Takes a request's answer, from any thread.
  void Answered(ProtocolRequest& request, Message answer);

  void OnMessage(Bytes message) override;
  void OnHalfClose() override;
  void OnCancelled() override;

 private:
  /// Adds a request to the unanswered ones.
  void Enter(const std::shared_ptr<ProtocolRequest>& request);
  /// Makes an answer ready to be sent, or keeps it until those before it are.
  void Put(std::uint64_t number, Message answer);
  /// Passes ready answers to the call, in order, in one thread at a time.
  void WriteReady();
  void Written(bool has_left);
  /// Reads the next message or ends the call, if possible.
  void GoOn();

  Gateway& gateway_;
  const std::shared_ptr<StreamCall> call_;
  const StreamRules rules_;

  std::mutex mutex_;
  /// Requests held by the gateway.
  std::vector<std::shared_ptr<ProtocolRequest>> active_;
  /// If answers are sent in order: those of the requests from first_ on, empty until ready.
  std::deque<std::optional<Message>> places_;
  std::uint64_t first_ = 0;
  std::uint64_t num_entered_ = 0;
  /// Answers ready to be sent.
  std::deque<Message> ready_;
  std::int64_t num_unanswered_ = 0;
  bool is_reading_ = true;
  bool is_writing_ = false;
  bool is_half_closed_ = false;
  /// The call is finished, or its client has disconnected.
  bool is_over_ = false;
};

/// Returns a method whose calls `make` makes requests of.
template <typename Make>
Method UnaryMethod(Gateway& gateway, Make make) {
  Method method;
  method.unary = [&gateway, make](std::shared_ptr<UnaryCall> call, Bytes message) {
    return AnswerUnary(gateway, make(), std::move(call), std::move(message));
  };
  return method;
}

Method StreamMethod(Gateway& gateway, StreamRules rules);

}  // namespace recsys

#endif  // RECSYS_ENGINE_PROTOCOLS_REQUEST_STREAM_H_
