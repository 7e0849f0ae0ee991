#include "base/text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

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

std::string_view FirstChars(std::string_view text, std::size_t max_chars) {
  std::size_t at = 0;
  for (std::size_t i = 0; i < max_chars && at < text.size(); ++i) at += CharAt(text, at).num_bytes;
  return text.substr(0, at);
}

namespace {

constexpr std::size_t kMaxChars = 64;
constexpr std::size_t kMaxNames = 8;

void AppendEscape(unsigned byte, std::string* text) {
  constexpr char kDigits[] = "0123456789abcdef";
  *text += {'\\', 'x', kDigits[byte >> 4 & 15], kDigits[byte & 15]};
}

/// Whether a character could forge a line of a log or change how others are shown: control
/// characters, line separators, directions of writing.
bool IsControl(std::uint32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || (code >= 0x200b && code < 0x2010) ||
         (code >= 0x2028 && code < 0x2030) || (code >= 0x2060 && code < 0x2070) || code == 0xfeff;
}

}  // namespace

std::string Repr(std::string_view text) {
  const bool has_single = text.find('\'') != text.npos && text.find('"') == text.npos;
  const char quote = has_single ? '"' : '\'';
  std::string repr(1, quote);
  repr.reserve(text.size() + 2);
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char found = CharAt(text, at);
    const std::string_view bytes = text.substr(at, found.num_bytes);
    at += found.num_bytes;
    if (found.is_valid && !IsControl(found.code)) {
      if (found.code == static_cast<unsigned char>(quote) || found.code == '\\') repr += '\\';
      repr += bytes;
    } else if (found.code == '\n') {
      repr += "\\n";
    } else {
      for (const char byte : bytes) AppendEscape(static_cast<unsigned char>(byte), &repr);
    }
  }
  return repr += quote;
}

std::string Short(std::string_view text) {
  if (FirstChars(text, kMaxChars).size() == text.size()) return Repr(text);
  return Repr(std::string(FirstChars(text, kMaxChars - 3)) + "...");
}

std::string Listed(const std::vector<std::string>& names) {
  if (names.empty()) return "none";
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kMaxNames); ++i) {
    if (i > 0) text += ", ";
    text += Short(names[i]);
  }
  if (names.size() > kMaxNames)
    text += " and " + std::to_string(names.size() - kMaxNames) + " more";
  return text;
}

std::string ReprFloat(double value) {
  if (std::isnan(value)) return "nan";
  std::array<char, 32> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return {buffer.data(), end.ptr};
}

bool IsUtf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char found = CharAt(text, at);
    if (!found.is_valid) return false;
    at += found.num_bytes;
  }
  return true;
}

}  // namespace recsys
