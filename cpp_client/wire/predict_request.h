#ifndef RECSYS_WIRE_PREDICT_REQUEST_H_
#define RECSYS_WIRE_PREDICT_REQUEST_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "recsys/request.h"

namespace recsys {

/// What stands in a recsys.v1.PredictRequest beside its inputs; views into its bytes.
struct PredictFields {
  std::string_view model;
  std::string_view version;
  std::string_view request_id;
  std::int32_t priority = 0;
  /// Whether a list of inputs was longer than what was kept of it.
  bool is_cut = false;
};

/// Of each list of inputs as many are kept at first: more than nearly every model has, and little
/// memory where millions were sent.
constexpr std::size_t kMaxInputsKept = 1024;

/// Reads a PredictRequest in place; checks only that it is one, as protobuf does: false where it is
/// not. Reuses the memory of `raw`. Of each list the first `max_inputs` are kept: one more than a
/// model has are enough to see what is wrong with it.
bool ReadPredictRequest(std::string_view message, std::size_t max_inputs, PredictFields* fields,
                        RawRequest* raw);

/// A serialized PredictRequest with these inputs.
std::string WritePredictRequest(const RawRequest& raw);

/// The bytes of a request's inputs, without their names.
std::size_t NumBytesOf(const RawRequest& raw);

}  // namespace recsys

#endif  // RECSYS_WIRE_PREDICT_REQUEST_H_
