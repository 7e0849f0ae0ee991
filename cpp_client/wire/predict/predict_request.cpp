#include "wire/predict/predict_request.h"

#include <vector>

#include "wire/cursor.h"
#include "wire/texts.h"
#include "wire/writer.h"

namespace recsys {
namespace {

void Read(Cursor* cursor, RawDense* dense) {
  while (cursor->Next()) {
    switch (cursor->tag()) {
      case DelimitedTag(1):
        dense->name = cursor->ReadText();
        break;
      case DelimitedTag(2):
        dense->values = cursor->ReadBytes();
        break;
      default:
        cursor->Skip();
    }
  }
}

// The texts of a SparseInput.
constexpr std::uint32_t kStrings = 5;

void Read(Cursor* cursor, RawSparse* sparse) {
  const std::string_view message = cursor->rest();
  while (cursor->Next()) {
    switch (cursor->tag()) {
      case DelimitedTag(1):
        sparse->name = cursor->ReadText();
        break;
      case DelimitedTag(2):
        sparse->lengths = cursor->ReadBytes();
        break;
      case DelimitedTag(3):
        sparse->values = cursor->ReadBytes();
        break;
      case DelimitedTag(4):
        sparse->weights = cursor->ReadBytes();
        break;
      case DelimitedTag(kStrings):
        cursor->ReadBytes();
        sparse->texts = {message, sparse->texts.num_texts + 1, &TakeField<kStrings>};
        break;
      default:
        cursor->Skip();
    }
  }
}

/// Reads one more input and keeps it if there is room; returns whether there was.
template <typename Input>
bool Append(Cursor* cursor, std::size_t max_inputs, std::vector<Input>* inputs) {
  Cursor inner = cursor->Enter();
  Input input;
  Read(&inner, &input);
  cursor->Leave(inner);
  const bool has_room = inputs->size() < max_inputs;
  if (has_room) inputs->push_back(input);
  return has_room;
}

// Fields of recsys.v1.PredictRequest (protos/recsys/v1/predict.proto).
constexpr std::uint32_t kNumRows = 3, kDense = 4, kSparse = 5, kContextDense = 6,
                        kContextSparse = 7;

void WriteDense(std::uint32_t field, const std::vector<RawDense>& inputs, Writer* writer) {
  for (const RawDense& input : inputs) {
    const std::size_t size = (input.name.empty() ? 0 : DelimitedSize(1, input.name.size())) +
                             (input.values.empty() ? 0 : DelimitedSize(2, input.values.size()));
    writer->DelimitedHead(field, size);
    writer->Text(1, input.name);
    writer->Text(2, input.values);
  }
}

void WriteSparse(std::uint32_t field, const std::vector<RawSparse>& inputs, Writer* writer) {
  for (const RawSparse& input : inputs) {
    const std::string_view parts[] = {input.name, input.lengths, input.values, input.weights};
    std::size_t size = 0;
    for (const std::string_view part : parts)
      size += part.empty() ? 0 : DelimitedSize(1, part.size());
    input.texts.ForEach(
        [&](std::string_view text) { size += DelimitedSize(kStrings, text.size()); });
    writer->DelimitedHead(field, size);
    for (std::uint32_t i = 0; i < std::size(parts); ++i) writer->Text(i + 1, parts[i]);
    input.texts.ForEach([&](std::string_view text) { writer->Delimited(kStrings, text); });
  }
}

}  // namespace

bool ReadPredictRequest(std::string_view message, std::size_t max_inputs, PredictFields* fields,
                        RawRequest* raw) {
  *fields = {};
  raw->num_rows = 0;
  raw->dense.clear();
  raw->sparse.clear();
  raw->context_dense.clear();
  raw->context_sparse.clear();
  bool all_kept = true;
  Cursor cursor(message);
  while (cursor.Next()) {
    switch (cursor.tag()) {
      case DelimitedTag(1):
        fields->model = cursor.ReadText();
        break;
      case DelimitedTag(2):
        fields->request_id = cursor.ReadText();
        break;
      case VarintTag(3):
        // Like protobuf: of more than 32 bits, the lower ones are used.
        raw->num_rows = static_cast<std::int32_t>(cursor.ReadVarint());
        break;
      case DelimitedTag(4):
        all_kept &= Append(&cursor, max_inputs, &raw->dense);
        break;
      case DelimitedTag(5):
        all_kept &= Append(&cursor, max_inputs, &raw->sparse);
        break;
      case DelimitedTag(6):
        all_kept &= Append(&cursor, max_inputs, &raw->context_dense);
        break;
      case DelimitedTag(7):
        all_kept &= Append(&cursor, max_inputs, &raw->context_sparse);
        break;
      case DelimitedTag(8):
        fields->version = cursor.ReadText();
        break;
      case VarintTag(9):
        fields->priority = static_cast<std::int32_t>(cursor.ReadVarint());
        break;
      default:
        cursor.Skip();
    }
  }
  fields->is_cut = !all_kept;
  return cursor.ok();
}

std::string WritePredictRequest(const RawRequest& raw) {
  Writer writer(NumBytesOf(raw) + 256);
  if (raw.num_rows != 0) writer.VarintField(kNumRows, static_cast<std::uint64_t>(raw.num_rows));
  WriteDense(kDense, raw.dense, &writer);
  WriteSparse(kSparse, raw.sparse, &writer);
  WriteDense(kContextDense, raw.context_dense, &writer);
  WriteSparse(kContextSparse, raw.context_sparse, &writer);
  return writer.Finish().Joined();
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

}  // namespace recsys
