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
  /// False where the bytes are no UTF-8: then `code` is the first byte, and num_bytes is 1.
  bool is_valid = false;
};

/// The character that starts at `at`, which lies before the end of the text.
Utf8Char CharAt(std::string_view text, std::size_t at);

/// Appends a character's UTF-8. Surrogates are written as if they were characters.
void AppendUtf8(std::uint32_t code, std::string* text);

/// Whether Python's str.isprintable() says so of the character (Unicode 14).
bool IsPrintable(std::uint32_t code);

/// As many characters of the beginning as `max_chars`; what is no UTF-8 counts byte by byte.
std::string_view FirstChars(std::string_view text, std::size_t max_chars);

}  // namespace recsys

#endif  // RECSYS_BASE_UTF8_H_
