#ifndef RECSYS_WIRE_INFER_INFER_REQUEST_H_
#define RECSYS_WIRE_INFER_INFER_REQUEST_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "recsys/request.h"
#include "recsys/signature.h"
#include "wire/infer/infer_parameters.h"
#include "wire/infer/infer_tensors.h"
#include "wire/owned_bytes.h"

namespace recsys {

/// What a tensor or an output must not ask for.
struct RefusedParameters {
  bool shared_memory_region = false;
  bool classification = false;
};

/// A ModelInferRequest.InferInputTensor: views into its bytes.
struct InferInput {
  /// Without its data.
  InferTensor tensor;
  /// The whole of it: where typed contents are.
  std::string_view message;
  bool has_contents = false;
  /// Which fields of its contents hold values: a bit for each field's number.
  std::uint32_t filled = 0;
  RefusedParameters refused;
};

/// A ModelInferRequest.InferRequestedOutputTensor.
struct InferOutput {
  std::string_view name;
  RefusedParameters refused;
};

/// An inference.ModelInferRequest: views into its bytes. Of each list the first few are kept, and
/// how many there were.
struct InferMessage {
  std::string_view model;
  std::string_view version;
  std::string_view id;
  ParameterValues parameters;
  std::vector<InferInput> inputs;
  std::vector<InferOutput> outputs;
  std::vector<std::string_view> raw_contents;
  std::size_t num_inputs = 0;
  std::size_t num_outputs = 0;
  std::size_t num_raw_contents = 0;
};

/// Of each list as many are kept at first: more than nearly every model has.
constexpr std::size_t kMaxTensorsKept = 1024;

/// Reads a message in place: nothing of it is checked but that it is one, whole. False where it is
/// none. The memory of `message`'s lists is used again.
bool ReadInferMessage(std::string_view bytes, std::size_t max_kept, InferMessage* message);

/// Whether as much of the message was kept as is looked at for such a model.
bool IsEnough(const InferMessage& message, const Signature& signature);

/// The numbers of the outputs that are asked for, in the request's order; empty for all. Throws
/// Error.
std::vector<std::size_t> WantedOutputs(const InferMessage& message, const Signature& signature);

/// The request's inputs, for one model. `raw` points into the message and into `owned`. Throws
/// Error: a tensor is not one that the model has.
void ReadInputs(const InferMessage& message, std::string_view context, const Signature& signature,
                const RequestLimits& limits, OwnedBytes* owned, RawRequest* raw);

/// The values of a tensor that came as numbers, as bytes; empty where there are none, or its type
/// is not served. Throws Error: they stand in the field of another type.
std::string_view TypedContents(const InferInput& input, OwnedBytes* owned);

}  // namespace recsys

#endif  // RECSYS_WIRE_INFER_INFER_REQUEST_H_
