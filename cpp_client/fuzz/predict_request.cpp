// Fuzzes recsys.v1.PredictRequest: the reader, the checks, and a batch of requests that pass. A
// request written again must read as the same.

#include "wire/predict/predict_request.h"

#include <cstddef>
#include <cstdint>
#include <string>

#include "fuzz/served.h"
#include "wire/writer.h"

namespace recsys {
namespace {

void Write(const RawDense& input, std::uint32_t field, Writer* writer) {
  Writer inner;
  inner.Text(1, input.name);
  inner.Text(2, input.values);
  writer->Delimited(field, inner.Finish().Joined());
}

void Write(const RawSparse& input, std::uint32_t field, Writer* writer) {
  Writer inner;
  inner.Text(1, input.name);
  inner.Text(2, input.lengths);
  inner.Text(3, input.values);
  inner.Text(4, input.weights);
  input.texts.ForEach([&](std::string_view text) { inner.Delimited(5, text); });
  writer->Delimited(field, inner.Finish().Joined());
}

std::string Written(const PredictFields& fields, const RawRequest& raw) {
  Writer writer;
  writer.Text(1, fields.model);
  writer.Text(2, fields.request_id);
  writer.VarintField(3, static_cast<std::uint64_t>(raw.num_rows));
  for (const RawDense& input : raw.dense) Write(input, 4, &writer);
  for (const RawSparse& input : raw.sparse) Write(input, 5, &writer);
  for (const RawDense& input : raw.context_dense) Write(input, 6, &writer);
  for (const RawSparse& input : raw.context_sparse) Write(input, 7, &writer);
  writer.Text(8, fields.version);
  writer.VarintField(9, static_cast<std::uint64_t>(std::int64_t{fields.priority}));
  return writer.Finish().Joined();
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
