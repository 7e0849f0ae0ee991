// Fuzzes inference.ModelInferRequest: the reader, parameters, tensors, the checks, and a batch of
// requests that pass. A second pass that keeps less must count the same.

#include "wire/infer/infer_request.h"

#include <cstddef>
#include <cstdint>

#include "fuzz/served.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace recsys;
  static Served& served = *new Served;
  static InferMessage& message = *new InferMessage;
  static RawRequest& raw = *new RawRequest;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const bool is_message = ReadInferMessage(bytes, kMaxTensorsKept, &message);
  InferMessage few;
  if (ReadInferMessage(bytes, 1, &few) != is_message) __builtin_trap();
  if (!is_message) return 0;
  if (few.num_inputs != message.num_inputs || few.num_raw_contents != message.num_raw_contents) {
    __builtin_trap();
  }
  OwnedBytes owned;
  try {
    const InferParameters parameters = ReadParameters(message.parameters);
    WantedOutputs(message, served.signature());
    ReadInputs(message, parameters.context, served.signature(), served.limits(), &owned, &raw);
    served.Take(raw);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kRequest && error.kind() != ErrorKind::kRequestTooLarge) {
      __builtin_trap();
    }
  }
  return 0;
}
