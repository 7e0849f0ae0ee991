#include "server/observe/log_format.h"

#include <algorithm>
#include <cmath>
#include <ctime>

#include "base/text.h"
#include "base/utf8.h"
#include "server/observe/json_text.h"

namespace recsys {
namespace {

constexpr char kDigits[] = "0123456789abcdef";

void AppendHex(std::uint32_t code, int num_digits, std::string* text) {
  for (int shift = 4 * (num_digits - 1); shift >= 0; shift -= 4)
    *text += kDigits[code >> shift & 15];
}

std::string TimeText(double time_s) {
  constexpr std::int64_t kMicros = 1'000'000;
  const auto micros = static_cast<std::int64_t>(std::llround(time_s * 1e6));
  std::time_t seconds = static_cast<std::time_t>(micros / kMicros);
  std::int64_t rest = micros % kMicros;
  if (rest < 0) {
    rest += kMicros;
    --seconds;
  }
  std::tm parts{};
  if (gmtime_r(&seconds, &parts) == nullptr) return "?";
  char text[64];
  const std::size_t size = std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S.", &parts);
  std::string digits = std::to_string(rest);
  digits.insert(0, 6 - digits.size(), '0');
  return std::string(text, size) + digits + "Z";
}

std::string Bounded(std::string_view text, std::size_t max_chars) {
  if (text.size() <= max_chars || FirstChars(text, max_chars).size() == text.size()) {
    return std::string(text);
  }
  return std::string(FirstChars(text, max_chars - 3)) + "...";
}

/// Of a long one the end is kept, which says what went wrong.
std::string BoundedException(std::string_view text) {
  if (text.size() <= kMaxExceptionBytes) return std::string(text);
  return "..." + std::string(text.substr(text.size() - (kMaxExceptionBytes - 3)));
}

bool IsAllPrintable(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char found = CharAt(text, at);
    if (!found.is_valid || !IsPrintable(found.code)) return false;
    at += found.num_bytes;
  }
  return true;
}

/// What cannot be printed as Python's unicode_escape has it.
std::string Escaped(std::string_view text) {
  std::string escaped;
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char found = CharAt(text, at);
    const std::uint32_t code = found.code;
    if (found.is_valid && IsPrintable(code)) {
      escaped.append(text.substr(at, found.num_bytes));
    } else if (code == '\n' || code == '\r' || code == '\t') {
      escaped += code == '\n' ? "\\n" : code == '\r' ? "\\r" : "\\t";
    } else {
      escaped += code < 0x100 ? "\\x" : code < 0x10000 ? "\\u" : "\\U";
      AppendHex(code, code < 0x100 ? 2 : code < 0x10000 ? 4 : 8, &escaped);
    }
    at += found.num_bytes;
  }
  return escaped;
}

bool IsEmpty(const LogValue& value) {
  const auto* const text = std::get_if<std::string>(&value);
  return text != nullptr && text->empty();
}

void AppendJsonValue(const LogValue& value, std::string* line) {
  if (const auto* const text = std::get_if<std::string>(&value)) {
    AppendJsonString(Bounded(*text, kMaxFieldChars), line);
  } else if (const auto* const whole = std::get_if<std::int64_t>(&value)) {
    *line += std::to_string(*whole);
  } else if (const auto* const flag = std::get_if<bool>(&value)) {
    *line += *flag ? "true" : "false";
  } else {
    const std::string number = ReprFloat(std::get<double>(value));
    // JSON has neither NaN nor infinities.
    const bool is_finite = std::isfinite(std::get<double>(value));
    *line += is_finite ? number : '"' + number + '"';
  }
}

/// In quotation marks where it could be taken for more than one word.
std::string Word(const LogValue& value) {
  if (const auto* const whole = std::get_if<std::int64_t>(&value)) return std::to_string(*whole);
  if (const auto* const flag = std::get_if<bool>(&value)) return *flag ? "True" : "False";
  if (const auto* const number = std::get_if<double>(&value)) return ReprFloat(*number);
  std::string text = Bounded(std::get<std::string>(value), kMaxFieldChars);
  if (IsAllPrintable(text) && text.find_first_of(" \"=\\") == text.npos) return text;
  std::string quoted;
  for (const char c : text) {
    if (c == '\\' || c == '"') quoted += '\\';
    quoted += c;
  }
  return '"' + Escaped(quoted) + '"';
}

}  // namespace

std::string JsonLine(const LogRecord& record) {
  std::string line = "{\"time\": \"" + TimeText(record.time_s) + "\", \"level\": \"";
  line += NameOf(record.level);
  line += "\", \"logger\": ";
  AppendJsonString(record.logger, &line);
  line += ", \"message\": ";
  AppendJsonString(Bounded(record.message, kMaxMessageChars), &line);
  for (const auto& [name, value] : record.fields) {
    if (IsEmpty(value)) continue;
    line += ", ";
    AppendJsonString(name, &line);
    line += ": ";
    AppendJsonValue(value, &line);
  }
  if (!record.exception.empty()) {
    line += ", \"exception\": ";
    AppendJsonString(BoundedException(record.exception), &line);
  }
  return line += '}';
}

std::string TextLine(const LogRecord& record) {
  std::string line = TimeText(record.time_s) + ' ' + NameOf(record.level) + ' ' + record.logger;
  line += ": " + Escaped(Bounded(record.message, kMaxMessageChars));
  for (const auto& [name, value] : record.fields) {
    if (!IsEmpty(value)) line += ' ' + name + '=' + Word(value);
  }
  const std::string exception = BoundedException(record.exception);
  for (std::size_t at = 0; at < exception.size();) {
    const std::size_t end = std::min(exception.find('\n', at), exception.size());
    line += "\n    " + Escaped(std::string_view(exception).substr(at, end - at));
    at = end + 1;
  }
  return line;
}

}  // namespace recsys
