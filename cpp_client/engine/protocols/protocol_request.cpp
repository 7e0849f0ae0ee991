#include "engine/protocols/protocol_request.h"

#include <string>
#include <string_view>
#include <utility>

#include "engine/protocols/request_memory.h"
#include "engine/protocols/request_stream.h"
#include "request/texts.h"

namespace recsys {

ProtocolRequest::ProtocolRequest(Gateway& gateway)
    : gateway_(gateway), memory_stripe_(RequestMemory::Shared().Take(this)) {}

ProtocolRequest::~ProtocolRequest() { RequestMemory::Shared().Give(this, memory_stripe_); }

void ProtocolRequest::LoadFrom(const Call& call, Bytes message) {
  client = call.connection_number();
  is_light = call.is_light();
  if (gateway_.reads_trace()) trace_parent = call.Metadata("traceparent");
  deadline_s = call.deadline_s();
  payload = std::move(message);
  num_bytes = static_cast<std::int64_t>(payload.view.size());
  Load(call);
  const std::string header = gateway_.KeyHeader(model);
  if (header.empty()) return;
  const std::string_view value = call.Metadata(header);
  if (!value.empty()) key = HashOfText(value);
}

void ProtocolRequest::Done(const Status& status, Message answer) {
  // The call holds the request as its handler: break the cycle.
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
    request->LoadFrom(*call, std::move(message));
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

Error ProtocolRequest::NoMessage(std::string_view kind) const {
  return Error(ErrorKind::kRequest, "message: got " + std::to_string(num_bytes) +
                                        " bytes that are not a " + std::string(kind));
}

}  // namespace recsys
