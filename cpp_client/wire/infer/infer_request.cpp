#include "wire/infer/infer_request.h"

#include <cstring>
#include <optional>
#include <string>

#include "base/text.h"
#include "recsys/error.h"
#include "wire/cursor.h"

namespace recsys {
namespace {

constexpr std::uint32_t Fixed64Tag(std::uint32_t field) { return Tag(field, WireType::kFixed64); }
constexpr std::uint32_t Fixed32Tag(std::uint32_t field) { return Tag(field, WireType::kFixed32); }

/// Reads an InferParameter; the last of its fields is used.
void ReadValue(Cursor* cursor, ParameterValue* value) {
  Cursor inner = cursor->Enter();
  while (inner.Next()) {
    switch (inner.tag()) {
      case VarintTag(1):
        *value = inner.ReadVarint() != 0;
        break;
      case VarintTag(2):
        *value = static_cast<std::int64_t>(inner.ReadVarint());
        break;
      case DelimitedTag(3):
        *value = inner.ReadText();
        break;
      case Fixed64Tag(4): {
        const std::uint64_t bits = inner.ReadFixed64();
        double number = 0;
        std::memcpy(&number, &bits, sizeof number);
        *value = number;
        break;
      }
      case VarintTag(5):
        *value = inner.ReadVarint();
        break;
      default:
        inner.Skip();
    }
  }
  cursor->Leave(inner);
}

/// Reads an entry of a parameter map; returns none if it contains unknown fields: Python's protobuf
/// ignores such an entry as a whole.
std::optional<std::string_view> ReadParameter(Cursor* cursor, ParameterValue* value) {
  std::string_view key;
  bool is_entry = true;
  Cursor inner = cursor->Enter();
  while (inner.Next()) {
    switch (inner.tag()) {
      case DelimitedTag(1):
        key = inner.ReadText();
        break;
      case DelimitedTag(2):
        ReadValue(&inner, value);
        break;
      default:
        is_entry = false;
        inner.Skip();
    }
  }
  cursor->Leave(inner);
  return is_entry ? std::make_optional(key) : std::nullopt;
}

void ReadRefused(Cursor* cursor, RefusedParameters* refused) {
  ParameterValue value;
  const std::optional<std::string_view> key = ReadParameter(cursor, &value);
  refused->shared_memory_region |= key == "shared_memory_region";
  refused->classification |= key == "classification";
}

/// Skips one field of InferTensorContents; returns whether it contains values.
bool HasValues(Cursor* cursor) {
  const std::uint32_t tag = cursor->tag();
  const std::uint32_t field = tag >> 3;
  if (field <= 5 && tag == VarintTag(field)) {
    cursor->ReadVarint();
    return true;
  }
  if (tag == Fixed32Tag(6) || tag == Fixed64Tag(7)) {
    cursor->Skip();
    return true;
  }
  if (field > 8 || tag != DelimitedTag(field)) {
    cursor->Skip();
    return false;
  }
  const std::string_view packed = cursor->ReadBytes();
  if (field == 8) return true;  // bytes elements, which may be empty
  const bool is_whole = field == 6   ? packed.size() % sizeof(float) == 0
                        : field == 7 ? packed.size() % sizeof(double) == 0
                                     : AreVarints(packed);
  if (!is_whole) cursor->Fail();
  return !packed.empty();
}

void ReadContents(Cursor* cursor, InferInput* input) {
  input->has_contents = true;
  Cursor inner = cursor->Enter();
  while (inner.Next()) {
    const std::uint32_t field = inner.tag() >> 3;
    if (HasValues(&inner)) input->filled |= 1U << field;
  }
  cursor->Leave(inner);
}

void ReadShape(Cursor* cursor, InferShape* shape) {
  std::string_view packed = cursor->ReadBytes();
  if (!AreVarints(packed)) return cursor->Fail();
  while (!packed.empty()) shape->Add(static_cast<std::int64_t>(TakeVarint(&packed)));
}

void Read(Cursor* cursor, InferInput* input) {
  const FieldReader size{VarintTag(3), [input](Cursor* at) {
                           input->tensor.shape.Add(static_cast<std::int64_t>(at->ReadVarint()));
                         }};
  const FieldReader sizes{DelimitedTag(3),
                          [input](Cursor* at) { ReadShape(at, &input->tensor.shape); }};
  const FieldReader parameter{DelimitedTag(4),
                              [input](Cursor* at) { ReadRefused(at, &input->refused); }};
  const FieldReader contents{DelimitedTag(5), [input](Cursor* at) { ReadContents(at, input); }};
  input->message = cursor->rest();
  ReadFields(cursor, Text(1, &input->tensor.name), Text(2, &input->tensor.datatype), size, sizes,
             parameter, contents);
}

void Read(Cursor* cursor, InferOutput* output) {
  const FieldReader parameter{DelimitedTag(2),
                              [output](Cursor* at) { ReadRefused(at, &output->refused); }};
  ReadFields(cursor, Text(1, &output->name), parameter);
}

/// A list of messages, of which the first `max_kept` are kept; `num` counts all.
template <typename Item>
auto Items(std::uint32_t number, std::size_t max_kept, std::vector<Item>* items, std::size_t* num) {
  return Nested(number, [=](Cursor* cursor) {
    Item item;
    Read(cursor, &item);
    if ((*num)++ < max_kept) items->push_back(item);
  });
}

void ReadParameters(Cursor* cursor, ParameterValues* parameters) {
  ParameterValue value;
  const std::optional<std::string_view> key = ReadParameter(cursor, &value);
  if (!key) return;
  // If a key occurs twice, the later entry is used, even if it has no value.
  if (ParameterValue* found = parameters->Find(*key)) *found = value;
}

void Refuse(const std::string& field, const RefusedParameters& refused) {
  if (!refused.shared_memory_region && !refused.classification) return;
  const std::string name = refused.shared_memory_region ? "shared_memory_region" : "classification";
  throw Error(ErrorKind::kRequest, field + ".parameters['" + name + "']: got " + name +
                                       ", expected none: this server has no such");
}

}  // namespace

bool ReadInferMessage(std::string_view bytes, std::size_t max_kept, InferMessage* message) {
  message->inputs.clear();
  message->outputs.clear();
  message->raw_contents.clear();
  message->num_inputs = message->num_outputs = message->num_raw_contents = 0;
  message->parameters = {};
  message->model = message->version = message->id = {};
  Cursor cursor(bytes);
  const FieldReader parameter{DelimitedTag(4),
                              [message](Cursor* at) { ReadParameters(at, &message->parameters); }};
  const FieldReader raw_contents{DelimitedTag(7), [message, max_kept](Cursor* at) {
                                   const std::string_view contents = at->ReadBytes();
                                   if (message->num_raw_contents++ >= max_kept) return;
                                   message->raw_contents.push_back(contents);
                                 }};
  ReadFields(&cursor, Text(1, &message->model), Text(2, &message->version), Text(3, &message->id),
             parameter, Items(5, max_kept, &message->inputs, &message->num_inputs),
             Items(6, max_kept, &message->outputs, &message->num_outputs), raw_contents);
  return cursor.ok();
}

bool IsEnough(const InferMessage& message, const Signature& signature) {
  // Counts above the model's maximum are rejected as such; nothing more needs to be kept.
  const auto lacks = [](std::size_t kept, std::size_t count, std::size_t most) {
    return count <= most && kept < count;
  };
  const std::size_t most = MostTensors(signature);
  return !lacks(message.inputs.size(), message.num_inputs, most) &&
         !lacks(message.raw_contents.size(), message.num_raw_contents, most) &&
         !lacks(message.outputs.size(), message.num_outputs, signature.outputs.size());
}

std::vector<std::size_t> WantedOutputs(const InferMessage& message, const Signature& signature) {
  if (message.num_outputs == 0) return {};
  CheckNumOutputs(message.num_outputs, signature);
  std::vector<std::string_view> names;
  for (const InferOutput& output : message.outputs) {
    Refuse("outputs[" + Repr(FirstChars(output.name, 64)) + "]", output.refused);
    names.push_back(output.name);
  }
  return WantedOutputs(names, signature);
}

void ReadInputs(const InferMessage& message, std::string_view context, const Signature& signature,
                const RequestLimits& limits, OwnedBytes* owned, RawRequest* raw) {
  const std::size_t num_raw = message.num_raw_contents;
  if (message.num_inputs > MostTensors(signature)) {
    throw Error(ErrorKind::kRequest, "inputs: got " + std::to_string(message.num_inputs) +
                                         " tensors, expected at most " +
                                         std::to_string(MostTensors(signature)) +
                                         " for this model");
  }
  if (num_raw > 0 && num_raw != message.num_inputs) {
    throw Error(ErrorKind::kRequest,
                "raw_input_contents: got " + std::to_string(num_raw) + " tensors, expected " +
                    std::to_string(message.num_inputs) + ", as many as inputs");
  }
  std::vector<InferTensor> tensors;
  tensors.reserve(message.inputs.size());
  for (std::size_t i = 0; i < message.inputs.size(); ++i) {
    const InferInput& input = message.inputs[i];
    tensors.push_back(input.tensor);
    if (input.refused.shared_memory_region || input.refused.classification) {
      Refuse(TensorField(input.tensor.name), input.refused);
    }
    if (num_raw == 0) {
      if (input.tensor.datatype == kTextType) {
        tensors.back().texts = TypedTexts(input, owned);
      } else {
        tensors.back().data = TypedContents(input, owned);
      }
    } else if (input.has_contents) {
      throw Error(ErrorKind::kRequest,
                  TensorField(input.tensor.name) +
                      ".contents: got values beside raw_input_contents, expected one of the two");
    } else {
      tensors.back().data = message.raw_contents[i];
    }
  }
  ReadInferTensors(tensors, context, signature, limits, owned, raw);
}

}  // namespace recsys
