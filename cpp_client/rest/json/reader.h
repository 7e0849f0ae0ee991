#ifndef RECSYS_REST_JSON_READER_H_
#define RECSYS_REST_JSON_READER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace recsys {

/// Reads JSON from left to right, without a tree. It takes less than all of JSON: what Python's
/// server reads in another way, or refuses (escapes, NaN, numbers out of range, fields that occur
/// twice), fails here, and the request is left to Python. After a failure every read fails.
class JsonReader {
 public:
  explicit JsonReader(std::string_view text)
      : begin_(text.data()), at_(begin_), end_(begin_ + text.size()) {}

  bool ok() const { return at_ != nullptr; }
  /// Always returns false, so that callers can return the result.
  bool Fail();
  /// Returns the next character that is no space; 0 at the end.
  char Peek();
  /// Takes a character, which must come next.
  bool Take(char wanted);
  /// Takes a character if it comes next.
  bool TakeIf(char wanted);
  /// Takes `null` if it comes next.
  bool TakeNull();
  /// Reads a text without escapes: a view into the JSON, in UTF-8.
  bool Text(std::string_view* text);
  /// Reads a whole number without fraction and exponent.
  bool Whole(std::int64_t* number);
  /// Reads a number that float32 can hold, rounded to double first.
  bool Float(float* number);
  bool Flag(bool* flag);
  /// Skips a list without checking what it holds, which a second reader has to do.
  bool SkipList();
  /// Whether only spaces are left.
  bool AtEnd() { return Peek() == 0 && at_ == end_; }
  std::size_t position() const { return static_cast<std::size_t>(at_ - begin_); }

  /// Calls `item` for each item of a list; it reads the item, or returns false.
  template <typename Item>
  bool List(Item item) {
    if (!Take('[')) return false;
    if (TakeIf(']')) return true;
    do {
      if (!item()) return Fail();
    } while (TakeIf(','));
    return Take(']');
  }
  /// Calls `field` with the name of each field of an object; it reads the value, or returns false.
  template <typename Field>
  bool Object(Field field) {
    if (!Take('{')) return false;
    if (TakeIf('}')) return true;
    do {
      std::string_view name;
      if (!Text(&name) || !Take(':') || !field(name)) return Fail();
    } while (TakeIf(','));
    return Take('}');
  }

 private:
  /// Returns the number that comes next, which is not taken; empty if none does.
  std::string_view Number(bool* is_whole);

  const char* begin_;
  /// Null after a failure.
  const char* at_;
  const char* end_;
};

}  // namespace recsys

#endif  // RECSYS_REST_JSON_READER_H_
