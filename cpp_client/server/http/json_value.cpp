#include "server/http/json_value.h"

#include "base/text.h"
#include "base/utf8.h"
#include "recsys/error.h"

namespace recsys {
namespace {

constexpr std::size_t kMaxChars = 64;

template <typename T>
constexpr const char* kKindOf = nullptr;
template <>
constexpr const char* kKindOf<JsonValue::Object> = "an object";
template <>
constexpr const char* kKindOf<JsonValue::List> = "a list";
template <>
constexpr const char* kKindOf<std::string> = "a text";
template <>
constexpr const char* kKindOf<bool> = "true or false";

}  // namespace

const char* JsonValue::kind() const {
  static constexpr const char* kKinds[] = {"null",           "true or false", "a whole number",
                                           "a whole number", "a number",      "a text",
                                           "a list",         "an object"};
  return kKinds[value_.index()];
}

std::string JsonValue::Short() const {
  if (const auto* const text = As<std::string>()) return recsys::Short(*text);
  if (const auto* const flag = As<bool>()) return *flag ? "True" : "False";
  if (const auto* const whole = As<std::int64_t>()) return std::to_string(*whole);
  if (const auto* const number = As<double>()) return ReprFloat(*number);
  if (const auto* const big = As<Big>()) {
    if (big->digits.size() <= kMaxChars) return big->digits;
    return big->digits.substr(0, kMaxChars - 3) + "...";
  }
  return is_null() ? "NoneType" : As<List>() != nullptr ? "list" : "dict";
}

std::size_t JsonValue::num_held_bytes() const {
  if (const auto* const object = As<Object>()) return HeldBytes(*object);
  if (const auto* const text = As<std::string>()) return text->capacity();
  if (const auto* const big = As<Big>()) return big->digits.capacity();
  const auto* const list = As<List>();
  if (list == nullptr) return 0;
  std::size_t sum = list->capacity() * sizeof(JsonValue);
  for (const JsonValue& entry : *list) sum += entry.num_held_bytes();
  return sum;
}

std::size_t HeldBytes(const JsonValue::Object& object) {
  std::size_t sum = object.capacity() * sizeof(JsonMember);
  for (const JsonMember& member : object) {
    sum += member.name.capacity() + member.value.num_held_bytes();
  }
  return sum;
}

const JsonValue* FindMember(const JsonValue::Object& object, std::string_view name) {
  for (const JsonMember& member : object) {
    if (member.name == name) return &member.value;
  }
  return nullptr;
}

template <typename T>
const T* FindEntry(const JsonValue::Object& holder, std::string_view name, const std::string& at) {
  const JsonValue* const value = FindMember(holder, name);
  if (value == nullptr || value->is_null()) return nullptr;
  if (const T* const found = value->As<T>()) return found;
  throw Error(ErrorKind::kRequest, at + "[" + Repr(FirstChars(name, kMaxChars)) + "]: got " +
                                       value->kind() + ", expected " + kKindOf<T>);
}

template const JsonValue::Object* FindEntry<JsonValue::Object>(const JsonValue::Object&,
                                                               std::string_view,
                                                               const std::string&);
template const JsonValue::List* FindEntry<JsonValue::List>(const JsonValue::Object&,
                                                           std::string_view, const std::string&);
template const std::string* FindEntry<std::string>(const JsonValue::Object&, std::string_view,
                                                   const std::string&);
template const bool* FindEntry<bool>(const JsonValue::Object&, std::string_view,
                                     const std::string&);

const JsonValue::Object& ObjectOf(const JsonValue& holder, const std::string& at) {
  if (const auto* const object = holder.As<JsonValue::Object>()) return *object;
  throw Error(ErrorKind::kRequest, at + ": got " + holder.kind() + ", expected an object");
}

}  // namespace recsys
