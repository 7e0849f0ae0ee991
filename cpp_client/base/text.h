#ifndef RECSYS_BASE_TEXT_H_
#define RECSYS_BASE_TEXT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace recsys {

/// Returns a text in quotes, for messages and logs: quotes, backslashes, control characters and
/// what is no UTF-8 are escaped.
std::string Repr(std::string_view text);

/// Returns Repr of at most the first 64 characters.
std::string Short(std::string_view text);

/// Joins names with commas: the first eight, and how many more there are.
std::string Listed(const std::vector<std::string>& names);

/// Returns the shortest text that reads back as the same number.
std::string ReprFloat(double value);

/// Whether the text is well-formed UTF-8 (no surrogates, no overlong sequences).
bool IsUtf8(std::string_view text);

/// One character of a text.
struct Utf8Char {
  std::uint32_t code = 0;
  /// At least 1.
  std::size_t num_bytes = 1;
  /// False if the bytes are not UTF-8: then `code` is the first byte, and num_bytes is 1.
  bool is_valid = false;
};

/// Returns the character at `at`, which must be before the end of the text.
Utf8Char CharAt(std::string_view text, std::size_t at);

/// Returns at most the first `max_chars` characters; each byte of invalid UTF-8 counts as one.
std::string_view FirstChars(std::string_view text, std::size_t max_chars);

}  // namespace recsys

#endif  // RECSYS_BASE_TEXT_H_
