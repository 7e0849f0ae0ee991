#include "server/protocols/protocol_request.h"

#include <utility>

#include "server/protocols/request_memory.h"
#include "server/protocols/request_stream.h"

namespace recsys {

ProtocolRequest::ProtocolRequest(Gateway& gateway) : gateway_(gateway) {
  RequestMemory::Shared().Take(this);
}

ProtocolRequest::~ProtocolRequest() { RequestMemory::Shared().Give(this); }

void ProtocolRequest::Done(const Status& status, Message answer) {
  // The call holds the request as its handler: no longer the other way round as well.
  const std::shared_ptr<UnaryCall> call = std::move(call_);
  const std::shared_ptr<RequestStream> stream = std::move(stream_);
  if (stream) {
    stream->Answered(*this, OnStream(status, std::move(answer)));
  } else if (status.ok()) {
    call->Answer(std::move(answer));
  } else {
    call->Fail(status);
  }
}

std::shared_ptr<UnaryHandler> AnswerUnary(Gateway& gateway,
                                          const std::shared_ptr<ProtocolRequest>& request,
                                          std::shared_ptr<UnaryCall> call, Bytes message) {
  try {
    request->Load(*call, std::move(message));
  } catch (...) {
    const Status status = StatusOfCurrentException();
    gateway.Refused(status, request->protocol);
    call->Fail(status);
    return nullptr;
  }
  request->AnswerTo(std::move(call));
  gateway.Predict(request);
  return request;
}

}  // namespace recsys
