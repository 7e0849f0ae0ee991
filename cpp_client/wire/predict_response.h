#ifndef RECSYS_WIRE_PREDICT_RESPONSE_H_
#define RECSYS_WIRE_PREDICT_RESPONSE_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "recsys/signature.h"
#include "wire/writer.h"

namespace recsys {

/// A recsys.v1.PredictResponse, byte for byte as protobuf writes it.
Message WritePredictResponse(std::string_view model, std::string_view version,
                             const std::vector<Output>& outputs, const AnswerRows& rows);

/// A recsys.v1.StreamResponse around a PredictResponse.
Message WriteStreamResponse(std::string_view request_id, Message response);

/// A recsys.v1.StreamResponse that says why there is no answer. `code`: gRPC's number.
Message WriteStreamError(std::string_view request_id, int code, std::string_view text,
                         std::int64_t retry_after_ms);

}  // namespace recsys

#endif  // RECSYS_WIRE_PREDICT_RESPONSE_H_
