#include "engine/protocols/recsys_v1.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "engine/protocols/request_stream.h"
#include "recsys/error.h"
#include "wire/predict_messages.h"

namespace recsys {
namespace {

Priority PriorityOf(std::int32_t number) {
  switch (number) {
    case 0:
    case 2:
      return Priority::kNormal;
    case 1:
      return Priority::kHigh;
    case 3:
      return Priority::kLow;
    default:
      throw Error(ErrorKind::kRequest, "priority: got " + std::to_string(number) +
                                           ", expected HIGH (1), NORMAL (2) or LOW (3)");
  }
}

}  // namespace

void PredictCall::Load(const Call& /*call*/) {
  PredictFields fields;
  if (!ReadPredictRequest(payload.view, num_kept_, &fields, &raw)) {
    throw NoMessage("PredictRequest");
  }
  CheckRequestId(fields.request_id);
  priority = PriorityOf(fields.priority);
  model = fields.model;
  version = fields.version;
  request_id = fields.request_id;
  is_cut_ = fields.is_cut;
  is_predict_request = true;
}

void PredictCall::Read(const Servable& by) {
  const Signature& signature = by.signature();
  const std::size_t num_looked_at = std::max(signature.dense.size(), signature.sparse.size()) + 1;
  if (!is_cut_ || num_looked_at <= num_kept_) return;
  num_kept_ = num_looked_at;
  PredictFields fields;
  ReadPredictRequest(payload.view, num_kept_, &fields, &raw);
}

Message PredictCall::Encode(const Servable& by, const Rows& rows) {
  return WritePredictResponse(by.name(), by.version(), by.signature().outputs,
                              {rows.num_rows, rows.values, rows.owner});
}

Message PredictCall::OnStream(const Status& status, Message answer) {
  if (status.ok()) return WriteStreamResponse(request_id, std::move(answer));
  return WriteStreamError(request_id, static_cast<int>(status.code), status.text,
                          status.retry_after_ms);
}

Service RecsysV1Service(Gateway& gateway, const ConnectionLimits& limits) {
  const auto make = [&gateway] { return std::make_shared<PredictCall>(gateway); };
  return {"recsys.v1.PredictionService",
          {{"Predict", UnaryMethod(gateway, make)},
           {"PredictStream", StreamMethod(gateway, {make, false, limits.max_stream_requests})}}};
}

}  // namespace recsys
