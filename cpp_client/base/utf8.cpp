#include "base/utf8.h"

namespace recsys {
namespace {

constexpr bool IsTail(unsigned char byte) { return (byte & 0xc0) == 0x80; }

}  // namespace

Utf8Char CharAt(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return {first, 1, true};
  const std::size_t num_bytes = first < 0xc2   ? 0
                                : first < 0xe0 ? 2
                                : first < 0xf0 ? 3
                                : first < 0xf5 ? 4
                                               : 0;
  if (num_bytes == 0 || text.size() - at < num_bytes) return {first, 1, false};
  std::uint32_t code = first & (0x7fU >> num_bytes);
  for (std::size_t i = 1; i < num_bytes; ++i) {
    if (!IsTail(byte(i))) return {first, 1, false};
    code = code << 6 | (byte(i) & 0x3fU);
  }
  const bool is_overlong = (num_bytes == 3 && code < 0x800) || (num_bytes == 4 && code < 0x10000);
  const bool is_surrogate = code >= 0xd800 && code < 0xe000;
  if (is_overlong || is_surrogate || code > 0x10ffff) return {first, 1, false};
  return {code, num_bytes, true};
}

void AppendUtf8(std::uint32_t code, std::string* text) {
  const auto append = [&](std::uint32_t byte) { text->push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    append(code);
    return;
  }
  if (code < 0x800) {
    append(0xc0 | code >> 6);
  } else {
    if (code < 0x10000) {
      append(0xe0 | code >> 12);
    } else {
      append(0xf0 | code >> 18);
      append(0x80 | (code >> 12 & 0x3f));
    }
    append(0x80 | (code >> 6 & 0x3f));
  }
  append(0x80 | (code & 0x3f));
}

std::string_view FirstChars(std::string_view text, std::size_t max_chars) {
  std::size_t at = 0;
  for (std::size_t i = 0; i < max_chars && at < text.size(); ++i) at += CharAt(text, at).num_bytes;
  return text.substr(0, at);
}

}  // namespace recsys
