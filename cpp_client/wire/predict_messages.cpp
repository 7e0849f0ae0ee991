#include "wire/predict_messages.h"

#include <utility>
#include <vector>

#include "wire/cursor.h"

namespace recsys {
namespace {

void Read(Cursor* cursor, RawDense* dense) {
  ReadFields(cursor, Text(1, &dense->name), Data(2, &dense->values));
}

// The texts of a SparseInput.
constexpr std::uint32_t kStrings = 5;

void Read(Cursor* cursor, RawSparse* sparse) {
  const std::string_view message = cursor->rest();
  const FieldReader strings{
      DelimitedTag(kStrings), [&](Cursor* at) {
        at->ReadBytes();
        sparse->texts = {message, sparse->texts.num_texts + 1, &TakeField<kStrings>};
      }};
  ReadFields(cursor, Text(1, &sparse->name), Data(2, &sparse->lengths), Data(3, &sparse->values),
             Data(4, &sparse->weights), strings);
}

/// Inputs of one kind, of which the first `max_inputs` are kept; `is_cut` is set if there are more.
template <typename Input>
auto Inputs(std::uint32_t number, std::size_t max_inputs, std::vector<Input>* inputs,
            bool* is_cut) {
  return Nested(number, [=](Cursor* cursor) {
    Input input;
    Read(cursor, &input);
    if (inputs->size() < max_inputs) {
      inputs->push_back(input);
    } else {
      *is_cut = true;
    }
  });
}

std::size_t TextSize(std::uint32_t field, std::string_view text) {
  return text.empty() ? 0 : DelimitedSize(field, text.size());
}

bool IsInteger(const Output& output) { return output.type == OutputType::kInt64; }

std::size_t OutputSize(const Output& output, std::int64_t num_rows, std::string_view values) {
  return TextSize(1, output.name) + DelimitedSize(2, ShapeSize(num_rows, output)) +
         (IsInteger(output) ? DelimitedSize(4, values.size()) : TextSize(3, values));
}

}  // namespace

bool ReadPredictRequest(std::string_view message, std::size_t max_inputs, PredictFields* fields,
                        RawRequest* raw) {
  *fields = {};
  raw->Clear();
  Cursor cursor(message);
  bool* const is_cut = &fields->is_cut;
  ReadFields(&cursor, Text(1, &fields->model), Text(2, &fields->request_id),
             Int<std::int32_t>(kNumRows, &raw->num_rows),
             Inputs(kDense, max_inputs, &raw->dense, is_cut),
             Inputs(kSparse, max_inputs, &raw->sparse, is_cut),
             Inputs(kContextDense, max_inputs, &raw->context_dense, is_cut),
             Inputs(kContextSparse, max_inputs, &raw->context_sparse, is_cut),
             Text(8, &fields->version), Int(9, &fields->priority));
  return cursor.ok();
}

void AppendInput(std::uint32_t field, const RawDense& input, std::string* out) {
  AppendHead(field, BytesSize(1, input.name.size()) + BytesSize(2, input.values.size()), out);
  AppendBytes(1, input.name, out);
  AppendBytes(2, input.values, out);
}

void AppendInput(std::uint32_t field, const RawSparse& input, std::string* out) {
  const std::string_view parts[] = {input.name, input.lengths, input.values, input.weights};
  std::size_t size = 0;
  for (const std::string_view part : parts) size += BytesSize(1, part.size());
  input.texts.ForEach([&](std::string_view text) { size += DelimitedSize(kStrings, text.size()); });
  AppendHead(field, size, out);
  for (std::uint32_t i = 0; i < std::size(parts); ++i) AppendBytes(i + 1, parts[i], out);
  input.texts.ForEach([&](std::string_view text) {
    AppendHead(kStrings, text.size(), out);
    out->append(text);
  });
}

std::string WritePredictRequest(const RawRequest& raw) {
  std::string written;
  written.reserve(NumBytesOf(raw) + 256);
  AppendNumber(kNumRows, static_cast<std::uint64_t>(raw.num_rows), &written);
  for (const RawDense& input : raw.dense) AppendInput(kDense, input, &written);
  for (const RawSparse& input : raw.sparse) AppendInput(kSparse, input, &written);
  for (const RawDense& input : raw.context_dense) AppendInput(kContextDense, input, &written);
  for (const RawSparse& input : raw.context_sparse) AppendInput(kContextSparse, input, &written);
  return written;
}

std::size_t NumBytesOf(const RawRequest& raw) {
  std::size_t sum = 0;
  for (const auto* const inputs : {&raw.dense, &raw.context_dense}) {
    for (const RawDense& input : *inputs) sum += input.values.size();
  }
  for (const auto* const inputs : {&raw.sparse, &raw.context_sparse}) {
    for (const RawSparse& input : *inputs) {
      sum += input.lengths.size() + input.values.size() + input.weights.size();
      input.texts.ForEach([&](std::string_view text) { sum += text.size(); });
    }
  }
  return sum;
}

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
