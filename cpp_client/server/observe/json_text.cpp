#include "server/observe/json_text.h"

#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/text.h"
#include "base/utf8.h"

namespace recsys {
namespace {

constexpr std::uint32_t kReplacement = 0xfffd;

void AppendUnit(std::uint32_t unit, std::string* json) {
  constexpr char kDigits[] = "0123456789abcdef";
  *json += "\\u";
  for (int shift = 12; shift >= 0; shift -= 4) *json += kDigits[unit >> shift & 15];
}

}  // namespace

void AppendJsonString(std::string_view value, std::string* json) {
  constexpr char kShort[] = "\"\\\n\r\t\f\b";
  constexpr char kLetters[] = "\"\\nrtfb";
  *json += '"';
  for (std::size_t at = 0; at < value.size();) {
    const Utf8Char found = CharAt(value, at);
    at += found.num_bytes;
    const std::uint32_t code = found.is_valid ? found.code : kReplacement;
    const bool is_ascii = code != 0 && code < 0x80;
    const char* const special = is_ascii ? std::strchr(kShort, static_cast<int>(code)) : nullptr;
    if (special != nullptr) {
      *json += '\\';
      *json += kLetters[special - kShort];
    } else if (code >= 0x20 && code < 0x7f) {
      *json += static_cast<char>(code);
    } else if (code < 0x10000) {
      AppendUnit(code, json);
    } else {
      AppendUnit(0xd800 + ((code - 0x10000) >> 10), json);
      AppendUnit(0xdc00 + ((code - 0x10000) & 0x3ff), json);
    }
  }
  *json += '"';
}

void AppendJsonNumber(double value, std::string* json) {
  *json += std::isfinite(value) ? ReprFloat(value) : "null";
}

}  // namespace recsys
