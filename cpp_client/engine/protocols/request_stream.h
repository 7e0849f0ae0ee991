#ifndef RECSYS_ENGINE_PROTOCOLS_REQUEST_STREAM_H_
#define RECSYS_ENGINE_PROTOCOLS_REQUEST_STREAM_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/core/gateway.h"
#include "engine/protocols/protocol_request.h"
#include "engine/rpc/service.h"

namespace recsys {

/// How a protocol's streams work.
struct StreamRules {
  /// A new request, empty.
  std::function<std::shared_ptr<ProtocolRequest>()> make;
  /// Whether answers come in the order of the requests, or as they are done.
  bool in_order = false;
  /// Most requests whose answers have not left; no more are read meanwhile.
  std::int64_t max_requests = 64;
};

/// The server's side of a stream of requests. Where a client sends and never reads, answers do not
/// leave, their requests count as unanswered, and no further message is read. Thread-safe.
class RequestStream : public StreamHandler, public std::enable_shared_from_this<RequestStream> {
 public:
  RequestStream(Gateway& gateway, std::shared_ptr<StreamCall> call, StreamRules rules);

  /// Asks for the first message.
  void Start() { call_->Read(); }
  /// Takes a request's answer, from any thread.
  void Answered(ProtocolRequest& request, Message answer);

  void OnMessage(Bytes message) override;
  void OnHalfClose() override;
  void OnCancelled() override;

 private:
  /// Gives a request its place among those that are unanswered.
  void Enter(const std::shared_ptr<ProtocolRequest>& request);
  /// Lets an answer leave, or wait for those before it.
  void Put(std::uint64_t number, Message answer);
  /// Hands answers to the call, in order, by one thread at a time.
  void WriteReady();
  void Written(bool has_left);
  /// Reads on, or ends the call, where it is time to.
  void GoOn();

  Gateway& gateway_;
  const std::shared_ptr<StreamCall> call_;
  const StreamRules rules_;

  std::mutex mutex_;
  /// Requests that the gateway has.
  std::vector<std::shared_ptr<ProtocolRequest>> active_;
  /// Where answers come in order: those of the requests from first_ on, empty until then.
  std::deque<std::optional<Message>> places_;
  std::uint64_t first_ = 0;
  std::uint64_t num_entered_ = 0;
  /// Answers that may leave.
  std::deque<Message> ready_;
  std::int64_t num_unanswered_ = 0;
  bool is_reading_ = true;
  bool is_writing_ = false;
  bool is_half_closed_ = false;
  /// The call is finished, or its client has gone.
  bool is_over_ = false;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_PROTOCOLS_REQUEST_STREAM_H_
