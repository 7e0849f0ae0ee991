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

/// Parameters that tensors and outputs must not have.
struct RefusedParameters {
  bool shared_memory_region = false;
  bool classification = false;
};

/// A ModelInferRequest.InferInputTensor: views into its bytes.
struct InferInput {
  /// Without data.
  InferTensor tensor;
  /// The whole message: contains the typed contents.
  std::string_view message;
  bool has_contents = false;
  /// Which fields of its contents hold values: one bit per field number.
  std::uint32_t filled = 0;
  RefusedParameters refused;
};

/// A ModelInferRequest.InferRequestedOutputTensor.
struct InferOutput {
  std::string_view name;
  RefusedParameters refused;
};

/// An inference.ModelInferRequest: views into its bytes. Of each list the first items are kept, and
/// its full length.
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

/// Initial maximum of items kept per list: more than nearly every model has.
constexpr std::size_t kMaxTensorsKept = 1024;

/// Reads a message in place; only checks that it is well-formed and complete, and returns false if
/// not. Reuses the memory of the lists in `message`.
bool ReadInferMessage(std::string_view bytes, std::size_t max_kept, InferMessage* message);

/// Whether enough of the message was kept for a model with this signature.
bool IsEnough(const InferMessage& message, const Signature& signature);

/// Returns the indexes of the requested outputs, in the request's order; empty for all. Throws
/// Error.
std::vector<std::size_t> WantedOutputs(const InferMessage& message, const Signature& signature);

/// Converts the request's inputs for one model. `raw` points into the message and into `owned`.
/// Throws Error if a tensor does not match the model.
void ReadInputs(const InferMessage& message, std::string_view context, const Signature& signature,
                const RequestLimits& limits, OwnedBytes* owned, RawRequest* raw);

/// Returns the texts of a tensor sent as typed contents; none if there are none. Throws Error if it
/// has values of another type.
RawTexts TypedTexts(const InferInput& input, OwnedBytes* owned);

/// Returns the numbers of a tensor sent as typed contents, as bytes; empty if there are none, or
/// its type is not supported. Throws Error if they are in the field of another type.
std::string_view TypedContents(const InferInput& input, OwnedBytes* owned);

}  // namespace recsys

#endif  // RECSYS_WIRE_INFER_INFER_REQUEST_H_
