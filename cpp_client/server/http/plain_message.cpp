#include "server/http/plain_message.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <vector>

#include "server/observe/json_text.h"

namespace recsys {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

/// One value of a field; `i`: which of a repeated one, or -1.
class Value {
  // Before its uses, which need its type.
  template <typename One, typename Many>
  auto Get(One one, Many many) const {
    return i_ < 0 ? (reflection_.*one)(message_, &field_)
                  : (reflection_.*many)(message_, &field_, i_);
  }

 public:
  Value(const Message& message, const FieldDescriptor& field, int i)
      : message_(message), field_(field), reflection_(*message.GetReflection()), i_(i) {}

  void Append(std::string* json) const {
    switch (field_.cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        *json += std::to_string(Get(&Reflection::GetInt32, &Reflection::GetRepeatedInt32));
        break;
      case FieldDescriptor::CPPTYPE_INT64:
        *json += std::to_string(Get(&Reflection::GetInt64, &Reflection::GetRepeatedInt64));
        break;
      case FieldDescriptor::CPPTYPE_UINT32:
        *json += std::to_string(Get(&Reflection::GetUInt32, &Reflection::GetRepeatedUInt32));
        break;
      case FieldDescriptor::CPPTYPE_UINT64:
        *json += std::to_string(Get(&Reflection::GetUInt64, &Reflection::GetRepeatedUInt64));
        break;
      case FieldDescriptor::CPPTYPE_DOUBLE:
        AppendJsonNumber(Get(&Reflection::GetDouble, &Reflection::GetRepeatedDouble), json);
        break;
      case FieldDescriptor::CPPTYPE_FLOAT:
        AppendJsonNumber(Get(&Reflection::GetFloat, &Reflection::GetRepeatedFloat), json);
        break;
      case FieldDescriptor::CPPTYPE_BOOL:
        *json += Get(&Reflection::GetBool, &Reflection::GetRepeatedBool) ? "true" : "false";
        break;
      case FieldDescriptor::CPPTYPE_STRING:
        AppendJsonString(Get(&Reflection::GetString, &Reflection::GetRepeatedString), json);
        break;
      case FieldDescriptor::CPPTYPE_ENUM:
        AppendJsonString(Get(&Reflection::GetEnum, &Reflection::GetRepeatedEnum)->name(), json);
        break;
      case FieldDescriptor::CPPTYPE_MESSAGE:
        AppendPlainMessage(i_ < 0 ? reflection_.GetMessage(message_, &field_)
                                  : reflection_.GetRepeatedMessage(message_, &field_, i_),
                           json);
        break;
    }
  }

 private:
  const Message& message_;
  const FieldDescriptor& field_;
  const Reflection& reflection_;
  const int i_;
};

/// Entries in the order of their keys, which are texts.
void AppendMap(const Message& message, const FieldDescriptor& field, std::string* json) {
  const Reflection& reflection = *message.GetReflection();
  const FieldDescriptor& key = *field.message_type()->map_key();
  std::vector<std::pair<std::string, const Message*>> entries;
  for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
    const Message& entry = reflection.GetRepeatedMessage(message, &field, i);
    entries.emplace_back(entry.GetReflection()->GetString(entry, &key), &entry);
  }
  std::sort(entries.begin(), entries.end());
  *json += '{';
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (i > 0) *json += ',';
    AppendJsonString(entries[i].first, json);
    *json += ':';
    Value(*entries[i].second, *field.message_type()->map_value(), -1).Append(json);
  }
  *json += '}';
}

void AppendField(const Message& message, const FieldDescriptor& field, std::string* json) {
  if (field.is_map()) return AppendMap(message, field, json);
  if (!field.is_repeated()) return Value(message, field, -1).Append(json);
  *json += '[';
  for (int i = 0; i < message.GetReflection()->FieldSize(message, &field); ++i) {
    if (i > 0) *json += ',';
    Value(message, field, i).Append(json);
  }
  *json += ']';
}

}  // namespace

void AppendPlainMessage(const Message& message, std::string* json) {
  const auto& descriptor = *message.GetDescriptor();
  *json += '{';
  bool is_first = true;
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const FieldDescriptor& field = *descriptor.field(i);
    if (field.has_presence() && !message.GetReflection()->HasField(message, &field)) continue;
    if (!is_first) *json += ',';
    is_first = false;
    AppendJsonString(field.name(), json);
    *json += ':';
    AppendField(message, field, json);
  }
  *json += '}';
}

}  // namespace recsys
