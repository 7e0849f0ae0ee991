#include "base/text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "base/utf8.h"

namespace recsys {
namespace {

constexpr std::size_t kMaxChars = 64;
constexpr std::size_t kMaxNames = 8;

void AppendEscape(char letter, std::uint32_t code, int num_digits, std::string* text) {
  constexpr char kDigits[] = "0123456789abcdef";
  *text += '\\';
  *text += letter;
  for (int shift = 4 * (num_digits - 1); shift >= 0; shift -= 4)
    *text += kDigits[code >> shift & 15];
}

void AppendRepr(const Utf8Char& found, std::string_view bytes, char quote, std::string* text) {
  const std::uint32_t code = found.code;
  if (!found.is_valid) {
    AppendEscape('x', code, 2, text);
  } else if (code == static_cast<unsigned char>(quote) || code == '\\') {
    *text += '\\';
    *text += static_cast<char>(code);
  } else if (code == '\t' || code == '\n' || code == '\r') {
    *text += code == '\t' ? "\\t" : code == '\n' ? "\\n" : "\\r";
  } else if (IsPrintable(code)) {
    text->append(bytes);
  } else if (code < 0x100) {
    AppendEscape('x', code, 2, text);
  } else if (code < 0x10000) {
    AppendEscape('u', code, 4, text);
  } else {
    AppendEscape('U', code, 8, text);
  }
}

}  // namespace

std::string Repr(std::string_view text) {
  const bool has_single = text.find('\'') != text.npos;
  const char quote = has_single && text.find('"') == text.npos ? '"' : '\'';
  std::string repr(1, quote);
  repr.reserve(text.size() + 2);
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char found = CharAt(text, at);
    AppendRepr(found, text.substr(at, found.num_bytes), quote, &repr);
    at += found.num_bytes;
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
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::array<char, 32> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                 std::chars_format::scientific);
  const std::string_view shortest(buffer.data(), static_cast<std::size_t>(end.ptr - buffer.data()));
  const std::size_t e = shortest.find('e');
  const int exponent = std::atoi(buffer.data() + e + 1);
  // Python's choice between the two notations.
  if (exponent < -4 || exponent >= 16) return std::string(shortest);
  const bool is_negative = shortest[0] == '-';
  std::string digits;
  for (const char c : shortest.substr(is_negative ? 1 : 0, e - (is_negative ? 1 : 0))) {
    if (c != '.') digits += c;
  }
  if (exponent < 0) {
    digits.insert(0, static_cast<std::size_t>(-exponent), '0');
    digits.insert(1, 1, '.');
  } else {
    const auto whole = static_cast<std::size_t>(exponent) + 1;
    if (digits.size() < whole) digits.append(whole - digits.size(), '0');
    digits.insert(whole, 1, '.');
    if (digits.size() == whole + 1) digits += '0';
  }
  return is_negative ? '-' + digits : digits;
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
