#include "wire/predict/predict_response.h"

#include <utility>

namespace recsys {
namespace {

std::size_t TextSize(std::uint32_t field, std::string_view text) {
  return text.empty() ? 0 : DelimitedSize(field, text.size());
}

bool IsInteger(const Output& output) { return output.type == OutputType::kInt64; }

std::size_t OutputSize(const Output& output, std::int64_t num_rows, std::string_view values) {
  return TextSize(1, output.name) + DelimitedSize(2, ShapeSize(num_rows, output)) +
         (IsInteger(output) ? DelimitedSize(4, values.size()) : TextSize(3, values));
}

}  // namespace

// Names and shapes are written each time: that is faster than looking up a prepared frame,
// which would be shared by requests of every size and by all executors.
Message WritePredictResponse(std::string_view model, std::string_view version,
                             const std::vector<Output>& outputs, const AnswerRows& rows) {
  std::size_t num_bytes = TextSize(2, model) + TextSize(3, version);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const std::size_t size = OutputSize(outputs[i], rows.num_rows, rows.values[i]);
    num_bytes += DelimitedSize(1, size);
    if (rows.values[i].size() >= Writer::kMinReferenced) num_bytes -= rows.values[i].size();
  }
  Writer writer(num_bytes);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const std::string_view values = rows.values[i];
    writer.DelimitedHead(1, OutputSize(outputs[i], rows.num_rows, values));
    writer.Text(1, outputs[i].name);
    WriteShape(2, rows.num_rows, outputs[i], &writer);
    // Integers are written even if there are none: that tells their type.
    if (values.empty() && !IsInteger(outputs[i])) continue;
    writer.DelimitedHead(IsInteger(outputs[i]) ? 4 : 3, values.size());
    writer.Values(values, rows.owner);
  }
  writer.Text(2, model);
  writer.Text(3, version);
  return writer.Finish();
}

Message WriteStreamResponse(std::string_view request_id, Message response) {
  const std::size_t num_bytes = response.num_bytes();
  Writer writer(TextSize(1, request_id) + DelimitedSize(2, num_bytes));
  writer.Text(1, request_id);
  writer.DelimitedHead(2, num_bytes);
  writer.Parts(std::move(response));
  return writer.Finish();
}

Message WriteStreamError(std::string_view request_id, int code, std::string_view text,
                         std::int64_t retry_after_ms) {
  Writer error;
  if (code != 0) error.VarintField(1, static_cast<std::uint64_t>(code));
  error.Text(2, text);
  if (retry_after_ms != 0) error.VarintField(3, static_cast<std::uint64_t>(retry_after_ms));
  Message inner = error.Finish();
  Writer writer;
  writer.Text(1, request_id);
  writer.DelimitedHead(3, inner.num_bytes());
  writer.Parts(std::move(inner));
  return writer.Finish();
}

}  // namespace recsys
