#ifndef RECSYS_WIRE_PREDICT_PREDICT_RESPONSE_H_
#define RECSYS_WIRE_PREDICT_PREDICT_RESPONSE_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "recsys/signature.h"
#include "wire/writer.h"

namespace recsys {

/// Serializes a recsys.v1.PredictResponse, byte for byte as protobuf writes it.
Message WritePredictResponse(std::string_view model, std::string_view version,
                             const std::vector<Output>& outputs, const AnswerRows& rows);

/// Serializes a recsys.v1.StreamResponse that contains a PredictResponse.
Message WriteStreamResponse(std::string_view request_id, Message response);

/// Serializes a recsys.v1.StreamResponse with an error. `code`: gRPC's number.
Message WriteStreamError(std::string_view request_id, int code, std::string_view text,
                         std::int64_t retry_after_ms);

}  // namespace recsys

#endif  // RECSYS_WIRE_PREDICT_PREDICT_RESPONSE_H_
