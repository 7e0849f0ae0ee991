#ifndef RECSYS_SERVER_HTTP_JSON_VALUE_H_
#define RECSYS_SERVER_HTTP_JSON_VALUE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace recsys {

struct JsonMember;

/// What a client sent as JSON, as Python's json.loads reads it: NaN and infinities too, and whole
/// numbers of any size. Movable, not copied by accident: bodies are large.
class JsonValue {
 public:
  /// A whole number that no int64 holds: its digits.
  struct Big {
    std::string digits;
  };
  using List = std::vector<JsonValue>;
  /// In the order in which they came; of names that stand twice the last counts.
  using Object = std::vector<JsonMember>;

  JsonValue() = default;
  template <typename T>
  explicit JsonValue(T value) : value_(std::move(value)) {}
  JsonValue(JsonValue&&) = default;
  JsonValue& operator=(JsonValue&&) = default;
  JsonValue(const JsonValue&) = delete;
  JsonValue& operator=(const JsonValue&) = delete;

  bool is_null() const { return std::holds_alternative<std::nullptr_t>(value_); }
  /// Null where it is something else.
  template <typename T>
  const T* As() const {
    return std::get_if<T>(&value_);
  }
  template <typename T>
  T* As() {
    return std::get_if<T>(&value_);
  }
  /// Whether it is a whole number, of any size.
  bool is_whole() const { return As<std::int64_t>() != nullptr || As<Big>() != nullptr; }

  /// "an object", "a whole number" and so on: for error texts (serve/rest_json.py, _KINDS).
  const char* kind() const;
  /// As serve/texts.py's short() has it.
  std::string Short() const;
  /// The memory of what is in it.
  std::size_t num_held_bytes() const;

 private:
  std::variant<std::nullptr_t, bool, std::int64_t, Big, double, std::string, List, Object> value_ =
      nullptr;
};

struct JsonMember {
  std::string name;
  JsonValue value;
};

/// The value of a name; null where there is none.
const JsonValue* FindMember(const JsonValue::Object& object, std::string_view name);

/// The memory that an object takes, which is many times its text where that is full of small
/// numbers.
std::size_t HeldBytes(const JsonValue::Object& object);

/// The JSON object that a body holds. Throws Error: kBodyTooLarge (it is longer than `max_bytes`),
/// kRequest (it holds none; the texts are those of serve/rest_json.py). Takes time and memory in
/// proportion to the text.
JsonValue::Object ParseJsonBody(std::string_view data, std::size_t max_bytes);

/// One entry of an object, of one of the types of JsonValue; null where it is missing or null.
/// Throws Error (kRequest): it is of another kind. `at`: what error texts call the object.
template <typename T>
const T* FindEntry(const JsonValue::Object& holder, std::string_view name, const std::string& at);
/// The same of a value that must be an object itself.
const JsonValue::Object& ObjectOf(const JsonValue& holder, const std::string& at);

}  // namespace recsys

#endif  // RECSYS_SERVER_HTTP_JSON_VALUE_H_
