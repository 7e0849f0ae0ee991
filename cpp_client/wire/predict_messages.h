#ifndef RECSYS_WIRE_PREDICT_MESSAGES_H_
#define RECSYS_WIRE_PREDICT_MESSAGES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "recsys/request.h"
#include "recsys/signature.h"
#include "wire/writer.h"

namespace recsys {

/// The fields of a recsys.v1.PredictRequest other than its inputs; views into its bytes.
struct PredictFields {
  std::string_view model;
  std::string_view version;
  std::string_view request_id;
  std::int32_t priority = 0;
  /// Whether a list of inputs was longer than the part that was kept.
  bool is_cut = false;
};

/// Initial maximum of inputs kept per list: more than nearly every model has, and little memory
/// even if millions were sent.
constexpr std::size_t kMaxInputsKept = 1024;

/// Reads a PredictRequest in place; only checks, as protobuf does, that it is one: returns false if
/// not. Reuses the memory of `raw`. Keeps the first `max_inputs` of each list: one more than a
/// model has is enough to report what is wrong.
bool ReadPredictRequest(std::string_view message, std::size_t max_inputs, PredictFields* fields,
                        RawRequest* raw);

// Fields of recsys.v1.PredictRequest (protos/recsys/v1/predict.proto) with inputs.
constexpr std::uint32_t kNumRows = 3, kDense = 4, kSparse = 5, kContextDense = 6,
                        kContextSparse = 7;

/// Appends an input to a serialized PredictRequest.
void AppendInput(std::uint32_t field, const RawDense& input, std::string* out);
void AppendInput(std::uint32_t field, const RawSparse& input, std::string* out);

/// Serializes a PredictRequest with these inputs.
std::string WritePredictRequest(const RawRequest& raw);

/// Returns the bytes of a request's inputs, without their names.
std::size_t NumBytesOf(const RawRequest& raw);

/// Serializes a recsys.v1.PredictResponse, byte for byte as protobuf writes it.
Message WritePredictResponse(std::string_view model, std::string_view version,
                             const std::vector<Output>& outputs, const AnswerRows& rows);

/// Serializes a recsys.v1.StreamResponse that contains a PredictResponse.
Message WriteStreamResponse(std::string_view request_id, Message response);

/// Serializes a recsys.v1.StreamResponse with an error. `code`: gRPC's number.
Message WriteStreamError(std::string_view request_id, int code, std::string_view text,
                         std::int64_t retry_after_ms);

}  // namespace recsys

#endif  // RECSYS_WIRE_PREDICT_MESSAGES_H_
