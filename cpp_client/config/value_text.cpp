#include "config/value_text.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <set>

#include "base/text.h"
#include "base/utf8.h"

namespace recsys {
namespace {

constexpr std::string_view kSpace = " \t\n\r\v\f";
constexpr std::size_t kMaxDigits = 18;
constexpr std::size_t kMaxSizeDigits = 15;
constexpr std::size_t kMaxCpuDigits = 5;
// More than any machine has processors; keeps a range such as 0-999999999 from being written out.
constexpr std::int64_t kMaxCpu = 65535;
constexpr std::uint32_t kFirstSurrogateOfByte = 0xDC00;

std::string_view Stripped(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

std::string_view LeadingDigits(std::string_view text) {
  std::size_t end = 0;
  while (end < text.size() && IsDigit(text[end])) ++end;
  return text.substr(0, end);
}

/// At most 18 digits.
std::int64_t WholeOf(std::string_view digits) {
  std::int64_t number = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return number;
}

std::vector<std::string_view> Split(std::string_view text) {
  std::vector<std::string_view> parts;
  std::size_t end = 0;
  do {
    end = text.find(',');
    parts.push_back(text.substr(0, end));
    if (end != text.npos) text.remove_prefix(end + 1);
  } while (end != text.npos);
  return parts;
}

/// What stands for the digits of `text` without underscores between them; none where one stands
/// elsewhere.
std::optional<std::string> WithoutUnderscores(std::string_view text) {
  std::string made;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      made += text[i];
    } else if (i == 0 || i + 1 == text.size() || !IsDigit(text[i - 1]) || !IsDigit(text[i + 1])) {
      return std::nullopt;
    }
  }
  return made;
}

/// Whether it is digits with a point and an exponent, as far as there are: no hexadecimal, nothing
/// else.
bool IsDecimal(std::string_view text) {
  const std::string_view whole = LeadingDigits(text);
  text.remove_prefix(whole.size());
  std::string_view fraction;
  if (text.substr(0, 1) == ".") {
    fraction = LeadingDigits(text.substr(1));
    text.remove_prefix(1 + fraction.size());
  }
  if (whole.empty() && fraction.empty()) return false;
  if (text.empty()) return true;
  if (text[0] != 'e' && text[0] != 'E') return false;
  text.remove_prefix(1);
  if (!text.empty() && (text[0] == '+' || text[0] == '-')) text.remove_prefix(1);
  return !text.empty() && LeadingDigits(text).size() == text.size();
}

/// A decimal number, infinite or zero where it is too large or too small.
double DecimalOf(const std::string& text) {
  double number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  // Only then: strtod would read the locale's point.
  if (read.ec == std::errc::result_out_of_range) number = std::strtod(text.c_str(), nullptr);
  return number;
}

std::optional<double> UnitOf(std::string_view rest) {
  std::string unit = LowerCase(rest);
  if (!unit.empty() && unit.back() == 'b') unit.pop_back();
  if (unit.empty()) return 1.0;
  const std::size_t power = std::string_view("kmgt").find(unit[0]);
  if (power == std::string_view::npos || (unit.size() > 1 && unit.substr(1) != "i")) {
    return std::nullopt;
  }
  double made = 1;
  for (std::size_t i = 0; i <= power; ++i) made *= unit.size() > 1 ? 1024 : 1000;
  return made;
}

/// "5" or "0-3", added to `found`; whether it is one.
bool AddRange(std::string_view part, std::set<std::int64_t>* found) {
  part = Stripped(part);
  const std::string_view first = LeadingDigits(part);
  part.remove_prefix(first.size());
  std::string_view last = first;
  if (!part.empty()) {
    if (part[0] != '-') return false;
    last = LeadingDigits(part.substr(1));
    part.remove_prefix(1 + last.size());
  }
  if (!part.empty() || first.empty() || last.empty() || first.size() > kMaxCpuDigits ||
      last.size() > kMaxCpuDigits || WholeOf(first) > WholeOf(last) || WholeOf(last) > kMaxCpu) {
    return false;
  }
  for (std::int64_t cpu = WholeOf(first); cpu <= WholeOf(last); ++cpu) found->insert(cpu);
  return true;
}

template <typename Items, typename Write>
std::string Joined(const Items& items, const char* between, Write write) {
  std::string text;
  bool is_first = true;
  for (const auto& item : items) {
    if (!is_first) text += between;
    text += write(item);
    is_first = false;
  }
  return text;
}

void AppendUnit(std::uint32_t unit, std::string* text) {
  std::array<char, 8> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "\\u%04x", unit & 0xFFFF);
  *text += buffer.data();
}

void AppendJson(const Utf8Char& found, std::string* text) {
  constexpr std::string_view kEscaped = "\"\\\b\f\n\r\t";
  constexpr std::string_view kLetters = "\"\\bfnrt";
  const std::uint32_t code = found.code;
  const std::size_t at = code < 0x80 ? kEscaped.find(static_cast<char>(code)) : kEscaped.npos;
  if (!found.is_valid) {
    AppendUnit(kFirstSurrogateOfByte + code, text);
  } else if (at != kEscaped.npos) {
    *text += '\\';
    *text += kLetters[at];
  } else if (code >= 0x20 && code < 0x7F) {
    *text += static_cast<char>(code);
  } else if (code < 0x10000) {
    AppendUnit(code, text);
  } else {
    AppendUnit(0xD800 + ((code - 0x10000) >> 10), text);
    AppendUnit(0xDC00 + ((code - 0x10000) & 0x3FF), text);
  }
}

struct Shown {
  std::string operator()(std::monostate) const { return "none"; }
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(std::int64_t value) const { return std::to_string(value); }
  std::string operator()(double value) const { return ReprFloat(value); }
  std::string operator()(const std::string& value) const { return value; }
  template <typename T>
  std::string operator()(const std::vector<T>& values) const {
    return Joined(values, ",", *this);
  }
};

struct Json {
  std::string operator()(std::monostate) const { return "null"; }
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(std::int64_t value) const { return std::to_string(value); }
  std::string operator()(double value) const { return ReprFloat(value); }
  std::string operator()(const std::string& value) const { return JsonText(value); }
  template <typename T>
  std::string operator()(const std::vector<T>& values) const {
    return "[" + Joined(values, ", ", *this) + "]";
  }
};

}  // namespace

std::string LowerCase(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

std::optional<Value> ReadYesNo(std::string_view text) {
  const std::string word = LowerCase(text);
  if (word == "true" || word == "yes" || word == "on" || word == "1") return true;
  if (word == "false" || word == "no" || word == "off" || word == "0") return false;
  return std::nullopt;
}

std::optional<Value> ReadWhole(std::string_view text) {
  const bool is_negative = text.substr(0, 1) == "-";
  if (is_negative) text.remove_prefix(1);
  if (text.empty() || text.size() > kMaxDigits || LeadingDigits(text).size() != text.size()) {
    return std::nullopt;
  }
  return is_negative ? -WholeOf(text) : WholeOf(text);
}

std::optional<Value> ReadSize(std::string_view text) {
  text = Stripped(text);
  const std::string_view whole = LeadingDigits(text);
  if (whole.empty() || whole.size() > kMaxSizeDigits) return std::nullopt;
  std::size_t end = whole.size();
  if (text.substr(end, 1) == ".") {
    const std::string_view fraction = LeadingDigits(text.substr(end + 1));
    if (fraction.empty()) return std::nullopt;
    end += 1 + fraction.size();
  }
  const std::size_t unit_at = std::min(text.find_first_not_of(kSpace, end), text.size());
  const std::optional<double> unit = UnitOf(text.substr(unit_at));
  if (!unit) return std::nullopt;
  const double num_bytes = DecimalOf(std::string(text.substr(0, end))) * *unit;
  // Python's numbers have no end; nothing has so many bytes.
  return static_cast<std::int64_t>(std::min(num_bytes, 9e18));
}

std::optional<Value> ReadNumber(std::string_view text) {
  text = Stripped(text);
  const bool is_negative = text.substr(0, 1) == "-";
  if (is_negative || text.substr(0, 1) == "+") text.remove_prefix(1);
  const std::string word = LowerCase(text);
  std::optional<double> number;
  if (word == "inf" || word == "infinity") number = std::numeric_limits<double>::infinity();
  if (word == "nan") number = std::numeric_limits<double>::quiet_NaN();
  if (const auto digits = WithoutUnderscores(text); digits && IsDecimal(*digits)) {
    number = DecimalOf(*digits);
  }
  if (!number) return std::nullopt;
  return is_negative ? -*number : *number;
}

std::optional<Value> ReadNumbers(std::string_view text) {
  std::set<std::int64_t> found;
  for (const std::string_view part : Split(text)) {
    if (!AddRange(part, &found)) return std::nullopt;
  }
  return std::vector<std::int64_t>(found.begin(), found.end());
}

std::optional<Value> ReadTexts(std::string_view text) {
  std::vector<std::string> names;
  for (const std::string_view part : Split(text)) names.emplace_back(Stripped(part));
  return names;
}

std::string ShownValue(const Value& value) { return std::visit(Shown(), value); }

std::string JsonValue(const Value& value) { return std::visit(Json(), value); }

std::string JsonText(std::string_view text) {
  std::string made = "\"";
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char found = CharAt(text, at);
    AppendJson(found, &made);
    at += found.num_bytes;
  }
  return made + '"';
}

}  // namespace recsys
