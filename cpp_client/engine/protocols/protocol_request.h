#ifndef RECSYS_ENGINE_PROTOCOLS_PROTOCOL_REQUEST_H_
#define RECSYS_ENGINE_PROTOCOLS_PROTOCOL_REQUEST_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "engine/core/gateway.h"
#include "engine/core/request.h"
#include "port/service.h"
#include "recsys/error.h"

namespace recsys {

class RequestStream;

/// A request of a call, and the destination of its answer: its own call, or the stream that it
/// arrived on. Protocols derive from it; one allocation holds a whole request.
class ProtocolRequest : public Request,
                        public UnaryHandler,
                        public std::enable_shared_from_this<ProtocolRequest> {
 public:
  explicit ProtocolRequest(Gateway& gateway);
  ~ProtocolRequest() override;

  /// Reads the parts of the message, which `payload` holds, that need no model. Throws Error.
  virtual void Load(const Call& call) = 0;
  /// Returns the stream's message for the end of the request; `answer` is Encode's.
  virtual Message OnStream(const Status& status, Message answer) = 0;

  /// Takes a call's message, deadline and trace. Throws Error.
  void LoadFrom(const Call& call, Bytes message);
  /// Sets the destination of the answer; call it before passing the request to the gateway.
  void AnswerTo(std::shared_ptr<UnaryCall> call) { call_ = std::move(call); }
  void AnswerTo(std::shared_ptr<RequestStream> stream) { stream_ = std::move(stream); }

  void Done(const Status& status, Message answer) final;
  /// The call ended before it was answered.
  void Cancelled() final { gateway_.Cancel(shared_from_this()); }

 protected:
  /// Returns the error for a payload that is no message of this kind, such as "PredictRequest".
  Error NoMessage(std::string_view kind) const;

 private:
  friend class RequestStream;
  Gateway& gateway_;
  const std::size_t memory_stripe_;
  std::shared_ptr<UnaryCall> call_;
  std::shared_ptr<RequestStream> stream_;
  // For the stream: the request's index in its list, and its number.
  std::size_t slot_ = 0;
  std::uint64_t number_ = 0;
};

/// Reads a unary call's message into a request and passes it to the gateway. Returns the handler
/// for the call's early end; null if the message cannot be read, which ends the call.
std::shared_ptr<UnaryHandler> AnswerUnary(Gateway& gateway,
                                          const std::shared_ptr<ProtocolRequest>& request,
                                          std::shared_ptr<UnaryCall> call, Bytes message);

}  // namespace recsys

#endif  // RECSYS_ENGINE_PROTOCOLS_PROTOCOL_REQUEST_H_
