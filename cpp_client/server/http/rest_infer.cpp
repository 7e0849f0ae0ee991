#include "server/http/rest_infer.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <utility>

#include "base/text.h"
#include "recsys/error.h"
#include "server/core/gateway.h"
#include "server/http/json_numbers.h"
#include "server/observe/json_text.h"

namespace recsys {
namespace {

// Below it a copy is quicker, and a small answer must not keep the memory of a large batch.
constexpr std::size_t kMinReferenced = 32 << 10;
const JsonValue::List kNoList;
const JsonValue::Object kNoObject;

Error Wrong(const std::string& text) { return Error(ErrorKind::kRequest, text); }

const JsonValue::List& ListAt(const JsonValue::Object& holder, const char* name,
                              const std::string& at) {
  const auto* const found = FindEntry<JsonValue::List>(holder, name, at);
  return found == nullptr ? kNoList : *found;
}

const JsonValue::Object& ObjectAt(const JsonValue::Object& holder, const char* name,
                                  const std::string& at) {
  const auto* const found = FindEntry<JsonValue::Object>(holder, name, at);
  return found == nullptr ? kNoObject : *found;
}

std::string_view TextAt(const JsonValue::Object& holder, const char* name, const std::string& at) {
  const auto* const found = FindEntry<std::string>(holder, name, at);
  return found == nullptr ? std::string_view() : *found;
}

bool FlagAt(const JsonValue::Object& holder, const char* name, const std::string& at) {
  const auto* const found = FindEntry<bool>(holder, name, at);
  return found != nullptr && *found;
}

std::vector<std::int64_t> ShapeOf(const JsonValue::List& sizes, const std::string& at) {
  std::vector<std::int64_t> shape;
  for (const JsonValue& size : sizes) {
    const auto* const whole = size.As<std::int64_t>();
    if (whole == nullptr || *whole == std::numeric_limits<std::int64_t>::min()) {
      throw Wrong(at + "['shape']: expected whole numbers of at most 64 bits");
    }
    shape.push_back(*whole);
  }
  return shape;
}

std::int64_t BinarySizeOf(const JsonValue& given, std::size_t num_left, const std::string& at) {
  if (given.is_null()) return 0;
  const std::string field = at + ".parameters['binary_data_size']: got ";
  if (!given.is_whole()) throw Wrong(field + given.kind() + ", expected a whole number");
  const auto* const size = given.As<std::int64_t>();
  if (size == nullptr || *size < 0 || static_cast<std::uint64_t>(*size) > num_left) {
    throw Wrong(field + given.Short() + ", expected 0 to " + std::to_string(num_left) +
                " (bytes left)");
  }
  return *size;
}

NumberType TypeOf(std::string_view datatype) {
  if (datatype == "FP32") return NumberType::kFloat32;
  return datatype == "INT64" ? NumberType::kInt64 : NumberType::kInt32;
}

void AppendFloats(std::string_view values, std::string* json) {
  *json += '[';
  for (std::size_t i = 0; i < values.size() / sizeof(float); ++i) {
    if (i > 0) *json += ',';
    AppendJsonNumber(static_cast<double>(LoadAt<float>(values, i)), json);
  }
  *json += ']';
}

}  // namespace

ParameterValues ParametersOf(const JsonValue::Object* given, std::vector<std::string>* shown) {
  ParameterValues values;
  if (given == nullptr) return values;
  // Views into it stay where they are.
  shown->reserve(4);
  for (const char* const name : {"sequence_id", "priority", "timeout", "context"}) {
    const JsonValue* const value = FindMember(*given, name);
    if (value == nullptr) continue;
    ParameterValue& read = *values.Find(name);
    if (const auto* const flag = value->As<bool>()) {
      read = *flag;
    } else if (const auto* const whole = value->As<std::int64_t>()) {
      read = *whole;
    } else if (const auto* const number = value->As<double>()) {
      read = *number;
    } else if (const auto* const text = value->As<std::string>()) {
      read = std::string_view(*text);
    } else {
      shown->push_back(value->Short());
      read = OtherParameter{shown->back()};
    }
  }
  return values;
}

InferBody::InferBody(std::string data, std::optional<std::int64_t> num_json_bytes,
                     std::size_t max_json_bytes)
    : data_(std::move(data)) {
  const auto size = static_cast<std::int64_t>(data_.size());
  const std::int64_t num_json = num_json_bytes.value_or(size);
  if (num_json > size) {
    throw Wrong(std::string(kJsonLengthHeader) + ": got " + std::to_string(num_json) +
                ", expected 0 to " + std::to_string(size) + ", the size of the body");
  }
  const std::string_view all = data_;
  body_ = ParseJsonBody(all.substr(0, static_cast<std::size_t>(num_json)), max_json_bytes);
  binary_ = all.substr(static_cast<std::size_t>(num_json));
  inputs_ = &ListAt(body_, "inputs", "body");
  outputs_ = &ListAt(body_, "outputs", "body");
  const auto* const parameters = FindEntry<JsonValue::Object>(body_, "parameters", "body");
  id_ = TextAt(body_, "id", "body");
  parameters_ = ReadParameters(ParametersOf(parameters, &shown_));
  CheckRequestId(id_, "id");
  if (parameters != nullptr)
    is_all_binary_ = FlagAt(*parameters, "binary_data_output", "parameters");
}

std::vector<InferBody::Wanted> InferBody::ReadWanted() const {
  std::vector<Wanted> wanted;
  for (std::size_t i = 0; i < outputs_->size(); ++i) {
    const std::string at = "outputs[" + std::to_string(i) + "]";
    const JsonValue::Object& output = ObjectOf((*outputs_)[i], at);
    const JsonValue::Object& parameters = ObjectAt(output, "parameters", at);
    const bool own = FlagAt(parameters, "binary_data", at + ".parameters");
    const bool says_so = FindMember(parameters, "binary_data") != nullptr;
    wanted.push_back({TextAt(output, "name", at), says_so ? own : is_all_binary_});
  }
  return wanted;
}

void InferBody::ReadInputs(const Hosted& hosted, RawRequest* raw) {
  const Signature& signature = hosted.signature();
  CheckNumOutputs(outputs_->size(), signature);
  const std::vector<Wanted> wanted = ReadWanted();
  std::vector<std::string_view> names;
  for (const Wanted& one : wanted) names.push_back(one.name);
  wanted_ = WantedOutputs(names, signature);
  is_binary_.assign(signature.outputs.size(), is_all_binary_);
  for (std::size_t i = 0; i < wanted.size(); ++i) is_binary_[wanted_[i]] = wanted[i].is_binary;
  if (wanted_.empty()) {
    for (std::size_t i = 0; i < signature.outputs.size(); ++i) wanted_.push_back(i);
  }
  const std::size_t most = MostTensors(signature);
  if (inputs_->size() > most) {
    throw Wrong("inputs: got " + std::to_string(inputs_->size()) + " tensors, expected at most " +
                std::to_string(most) + " for this model");
  }
  owned_.Clear();
  ReadInferTensors(ReadTensors(), parameters_.context, signature, hosted.checker().limits(),
                   &owned_, raw);
}

std::vector<InferTensor> InferBody::ReadTensors() {
  std::vector<InferTensor> tensors;
  std::size_t num_taken = 0;
  for (std::size_t i = 0; i < inputs_->size(); ++i) {
    tensors.push_back(ReadTensor((*inputs_)[i], "inputs[" + std::to_string(i) + "]", &num_taken));
  }
  if (num_taken != binary_.size()) {
    throw Wrong("body: got " + std::to_string(binary_.size()) + " bytes after the JSON, expected " +
                std::to_string(num_taken) + ", as the inputs say");
  }
  return tensors;
}

InferTensor InferBody::ReadTensor(const JsonValue& given, const std::string& at,
                                  std::size_t* num_taken) {
  const JsonValue::Object& object = ObjectOf(given, at);
  InferTensor tensor;
  tensor.name = TextAt(object, "name", at);
  tensor.datatype = TextAt(object, "datatype", at);
  const std::vector<std::int64_t> shape = ShapeOf(ListAt(object, "shape", at), at);
  tensor.shape.num_dims = 0;
  for (const std::int64_t size : shape) tensor.shape.Add(size);
  const JsonValue::Object& parameters = ObjectAt(object, "parameters", at);
  if (const JsonValue* const size = FindMember(parameters, "binary_data_size")) {
    const std::string_view left = binary_.substr(*num_taken);
    tensor.data = left.substr(0, static_cast<std::size_t>(BinarySizeOf(*size, left.size(), at)));
    *num_taken += tensor.data.size();
  } else {
    tensor.data = ValuesOf(tensor, shape, ListAt(object, "data", at));
  }
  return tensor;
}

std::string_view InferBody::ValuesOf(const InferTensor& tensor,
                                     const std::vector<std::int64_t>& shape,
                                     const JsonValue::List& data) {
  // Of another type the tensor's own checks say so.
  if (DatatypeBytes(tensor.datatype) == 0) return {};
  const std::string field = TensorField(tensor.name) + ".data";
  const FlatList flat = Flat(field, data);
  const std::vector<std::int64_t>& nested = flat.shape;
  const bool fits =
      nested.size() <= shape.size() && std::equal(nested.begin(), nested.end(), shape.begin());
  if (nested.size() > 1 && !fits) {
    throw Wrong(field + ": got lists of shape " + ListText(nested) + ", expected " +
                ListText(shape) + ", or one flat list");
  }
  return Pack(field, flat.entries, TypeOf(tensor.datatype), &owned_);
}

InferBody::Answer InferBody::Write(const Hosted& hosted, const Rows& rows) const {
  Answer answer;
  std::string json = "{\"model_name\":";
  AppendJsonString(hosted.name(), &json);
  json += ",\"model_version\":";
  AppendJsonString(hosted.version(), &json);
  if (!id_.empty()) {
    json += ",\"id\":";
    AppendJsonString(id_, &json);
  }
  json += ",\"outputs\":[";
  std::vector<Bytes> binary;
  for (std::size_t i = 0; i < wanted_.size(); ++i) {
    const Output& output = hosted.signature().outputs[wanted_[i]];
    const std::string_view values = rows.values[wanted_[i]];
    json += i > 0 ? ",{\"name\":" : "{\"name\":";
    AppendJsonString(output.name, &json);
    json += ",\"datatype\":\"FP32\",\"shape\":[" + std::to_string(rows.num_rows);
    for (const std::int64_t size : output.shape) json += ',' + std::to_string(size);
    json += ']';
    if (is_binary_[wanted_[i]]) {
      json += ",\"parameters\":{\"binary_data_size\":" + std::to_string(values.size()) + "}}";
      binary.push_back(values.size() < kMinReferenced ? Bytes::Of(std::string(values))
                                                      : Bytes{values, rows.owner});
    } else {
      json += ",\"data\":";
      AppendFloats(values, &json);
      json += '}';
    }
  }
  json += "]}";
  answer.num_json_bytes = json.size();
  answer.message = Message::Of(std::move(json));
  for (Bytes& part : binary) answer.message.parts.push_back(std::move(part));
  return answer;
}

}  // namespace recsys
