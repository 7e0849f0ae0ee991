// Fuzzes recsys.v1.PredictRequest: the reader, the checks, and a batch of requests that pass. A
// request written again must read as the same.

#include <cstddef>
#include <cstdint>
#include <string>

#include "fuzz/served.h"
#include "wire/predict_messages.h"
#include "wire/writer.h"

namespace recsys {
namespace {

std::string Written(const PredictFields& fields, const RawRequest& raw) {
  std::string written = WritePredictRequest(raw);
  AppendBytes(1, fields.model, &written);
  AppendBytes(2, fields.request_id, &written);
  AppendBytes(8, fields.version, &written);
  AppendNumber(9, static_cast<std::uint64_t>(std::int64_t{fields.priority}), &written);
  return written;
}

}  // namespace
}  // namespace recsys

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace recsys;
  static Served& served = *new Served;
  static RawRequest& raw = *new RawRequest;
  PredictFields fields;
  const std::string_view message(reinterpret_cast<const char*>(data), size);
  if (!ReadPredictRequest(message, kMaxInputsKept, &fields, &raw)) return 0;
  if (!fields.is_cut) {
    const std::string written = Written(fields, raw);
    RawRequest again;
    if (!ReadPredictRequest(written, kMaxInputsKept, &fields, &again)) __builtin_trap();
    if (Written(fields, again) != written) __builtin_trap();
  }
  try {
    served.Take(raw);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kRequest && error.kind() != ErrorKind::kRequestTooLarge) {
      __builtin_trap();
    }
  }
  return 0;
}
