#include "wire/predict_request.h"

#include <vector>

#include "wire/cursor.h"

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

void Read(Cursor* cursor, RawSparse* sparse) {
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
      default:
        cursor->Skip();
    }
  }
}

/// Reads one more input; keeps it where there is room. Whether there was.
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
        // As protobuf has it: of more than 32 bits the lower ones count.
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

bool ReadNamedModel(std::string_view message, NamedModel* named) {
  Cursor cursor(message);
  while (cursor.Next()) {
    switch (cursor.tag()) {
      case DelimitedTag(1):
        named->name = cursor.ReadText();
        break;
      case DelimitedTag(2):
        named->version = cursor.ReadText();
        break;
      default:
        cursor.Skip();
    }
  }
  return cursor.ok();
}

}  // namespace recsys
