#ifndef RECSYS_BASE_UTF8_H_
#define RECSYS_BASE_UTF8_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace recsys {

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

#endif  // RECSYS_BASE_UTF8_H_
