#ifndef RECSYS_SERVER_PROTOCOLS_PROTOCOL_REQUEST_H_
#define RECSYS_SERVER_PROTOCOLS_PROTOCOL_REQUEST_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "server/core/gateway.h"
#include "server/core/request.h"
#include "server/rpc/service.h"

namespace recsys {

class RequestStream;

/// A request of a gRPC call, and how its answer finds back: to a call of its own, or to the stream
/// it came on. Protocols derive from it; one allocation is a whole request.
class ProtocolRequest : public Request,
                        public UnaryHandler,
                        public std::enable_shared_from_this<ProtocolRequest> {
 public:
  explicit ProtocolRequest(Gateway& gateway);
  ~ProtocolRequest() override;

  /// Takes over a message as it came and reads of it what needs no model. Throws Error.
  virtual void Load(const Call& call, Bytes message) = 0;
  /// The message that tells a stream how the request ended; `answer` is what Encode wrote.
  virtual Message OnStream(const Status& status, Message answer) = 0;

  /// Who waits for the answer; to be said before the request is given to the gateway.
  void AnswerTo(std::shared_ptr<UnaryCall> call) { call_ = std::move(call); }
  void AnswerTo(std::shared_ptr<RequestStream> stream) { stream_ = std::move(stream); }

  void Done(const Status& status, Message answer) final;
  /// The call ended before its answer was there.
  void Cancelled() final { gateway_.Cancel(shared_from_this()); }

 private:
  friend class RequestStream;
  Gateway& gateway_;
  std::shared_ptr<UnaryCall> call_;
  std::shared_ptr<RequestStream> stream_;
  // The stream's: where it keeps the request, and which it is.
  std::size_t slot_ = 0;
  std::uint64_t number_ = 0;
};

/// Reads a unary call's request and gives it to the gateway; what cannot be read ends the call.
/// What hears of the call's early end.
std::shared_ptr<UnaryHandler> AnswerUnary(Gateway& gateway,
                                          const std::shared_ptr<ProtocolRequest>& request,
                                          std::shared_ptr<UnaryCall> call, Bytes message);

}  // namespace recsys

#endif  // RECSYS_SERVER_PROTOCOLS_PROTOCOL_REQUEST_H_
