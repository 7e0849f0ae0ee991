// Fuzzes requests over HTTP: the head, the two forms of bodies, and the checks of what they become.
// Whatever a body becomes must be a message.

#include <cstddef>
#include <cstdint>
#include <string>

#include "fuzz/served.h"
#include "rest/json/predict_body.h"
#include "rest/json/rows_body.h"
#include "rest/request_head.h"
#include "wire/infer/infer_request.h"
#include "wire/predict_messages.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace recsys;
  static Served& served = *new Served;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  RequestHead head;
  const HeadResult result = ReadRequestHead(bytes, &head);
  if (result == HeadResult::kNative) HeaderOf(head.lines, "traceparent");
  const std::string_view body =
      result == HeadResult::kNative ? bytes.substr(head.num_bytes) : bytes;
  const std::size_t num_json = std::min(head.num_json_bytes.value_or(body.size()), body.size());
  std::string infer, predict;
  InferForm form;
  InferMessage message;
  if (ReadInferBody({"m", ""}, body.substr(0, num_json), body.substr(num_json), &infer, &form) &&
      !ReadInferMessage(infer, kMaxTensorsKept, &message)) {
    __builtin_trap();
  }
  PredictFields fields;
  RawRequest raw;
  if (!ReadPredictBody({"m", ""}, body, served.signature(), served.limits(), &predict)) {
    predict.clear();
    if (!ReadRowsBody({"m", ""}, body, served.signature(), served.limits(), &predict)) return 0;
  }
  if (!ReadPredictRequest(predict, kMaxInputsKept, &fields, &raw)) __builtin_trap();
  try {
    served.Take(raw);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kRequest && error.kind() != ErrorKind::kRequestTooLarge) {
      __builtin_trap();
    }
  }
  return 0;
}
