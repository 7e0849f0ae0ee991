#include "engine/protocols/kserve.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "engine/core/servable.h"
#include "engine/protocols/request_stream.h"
#include "recsys/error.h"
#include "wire/infer/infer_response.h"

namespace recsys {
namespace {

/// The memory that a request's inputs point into.
struct Kept {
  std::shared_ptr<const void> message;
  OwnedBytes owned;
};

}  // namespace

InferCall::InferCall(Gateway& gateway, const Clock& clock, bool is_on_stream)
    : ProtocolRequest(gateway), clock_(clock), is_on_stream_(is_on_stream) {
  protocol = "kserve";
}

void InferCall::Load(const Call& /*call*/) {
  if (!ReadInferMessage(payload.view, kMaxTensorsKept, &message_)) {
    throw NoMessage("ModelInferRequest");
  }
  const InferParameters parameters = ReadParameters(message_.parameters);
  CheckRequestId(message_.id, "id");
  context_ = parameters.context;
  priority = static_cast<Priority>(parameters.priority);
  if (parameters.timeout_s) deadline_s = std::min(deadline_s, clock_() + *parameters.timeout_s);
  model = message_.model;
  version = message_.version;
  request_id = message_.id;
}

void InferCall::Read(const Servable& by) {
  const Signature& signature = by.signature();
  if (!IsEnough(message_, signature)) {
    const std::size_t most = std::max(MostTensors(signature), signature.outputs.size());
    ReadInferMessage(payload.view, most, &message_);
  }
  wanted_ = WantedOutputs(message_, signature);
  const auto kept = std::make_shared<Kept>();
  ReadInputs(message_, context_, signature, by.checker().limits(), &kept->owned, &raw);
  kept->message = payload.owner;
  payload.owner = kept;
}

Message InferCall::Encode(const Servable& by, const Rows& rows) {
  return WriteInferResponse({by.name(), by.version(), request_id, wanted_, is_on_stream_},
                            by.signature().outputs, {rows.num_rows, rows.values, rows.owner});
}

Message InferCall::OnStream(const Status& status, Message answer) {
  if (status.ok()) return WriteInferStreamResponse(std::move(answer));
  return WriteInferStreamError(request_id, status.text);
}

Service KserveService(Gateway& gateway, const ConnectionLimits& limits, Clock given_clock) {
  const auto make =
      [&gateway, clock = std::make_shared<const Clock>(std::move(given_clock))](bool is_on_stream) {
        return [&gateway, clock, is_on_stream] {
          return std::make_shared<InferCall>(gateway, *clock, is_on_stream);
        };
      };
  return {"inference.GRPCInferenceService",
          {{"ModelInfer", UnaryMethod(gateway, make(false))},
           {"ModelStreamInfer",
            StreamMethod(gateway, {make(true), true, limits.max_stream_requests})}}};
}

}  // namespace recsys
