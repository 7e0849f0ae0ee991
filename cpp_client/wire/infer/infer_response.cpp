#include "wire/infer/infer_response.h"

#include <utility>

#include "wire/infer/infer_tensors.h"

namespace recsys {
namespace {

constexpr std::string_view kFinal = "triton_final_response";

/// Writes an InferOutputTensor.
void WriteOutput(const Output& output, std::int64_t num_rows, Writer* writer) {
  const std::size_t name_bytes = output.name.empty() ? 0 : DelimitedSize(1, output.name.size());
  const std::string_view datatype = DatatypeOf(output);
  writer->DelimitedHead(5, name_bytes + DelimitedSize(2, datatype.size()) +
                               DelimitedSize(3, ShapeSize(num_rows, output)));
  writer->Text(1, output.name);
  writer->Text(2, datatype);
  WriteShape(3, num_rows, output, writer);
}

/// Writes a parameter whose value is true.
void WriteFinal(Writer* writer) {
  constexpr std::size_t kFlagBytes = 2;
  writer->DelimitedHead(4, DelimitedSize(1, kFinal.size()) + DelimitedSize(2, kFlagBytes));
  writer->Text(1, kFinal);
  writer->DelimitedHead(2, kFlagBytes);
  writer->VarintField(1, 1);
}

}  // namespace

Message WriteInferResponse(const InferAnswer& answer, const std::vector<Output>& outputs,
                           const AnswerRows& rows) {
  const std::size_t num_outputs = answer.wanted.empty() ? outputs.size() : answer.wanted.size();
  const auto number = [&](std::size_t i) { return answer.wanted.empty() ? i : answer.wanted[i]; };
  Writer writer;
  writer.Text(1, answer.model);
  writer.Text(2, answer.version);
  writer.Text(3, answer.id);
  if (answer.is_final) WriteFinal(&writer);
  for (std::size_t i = 0; i < num_outputs; ++i) {
    WriteOutput(outputs[number(i)], rows.num_rows, &writer);
  }
  for (std::size_t i = 0; i < num_outputs; ++i) {
    const std::string_view values = rows.values[number(i)];
    writer.DelimitedHead(6, values.size());
    writer.Values(values, rows.owner);
  }
  return writer.Finish();
}

Message WriteInferStreamResponse(Message response) {
  Writer writer;
  writer.DelimitedHead(2, response.num_bytes());
  writer.Parts(std::move(response));
  return writer.Finish();
}

Message WriteInferStreamError(std::string_view id, std::string_view text) {
  Writer writer;
  writer.Text(1, text);
  writer.DelimitedHead(2, id.empty() ? 0 : DelimitedSize(3, id.size()));
  writer.Text(3, id);
  return writer.Finish();
}

}  // namespace recsys
