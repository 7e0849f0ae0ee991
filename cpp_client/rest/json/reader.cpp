#include "rest/json/reader.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <system_error>

#include "base/text.h"

namespace recsys {
namespace {

// Longer numbers are left to Python, which bounds their length.
constexpr std::size_t kMostDigits = 64;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

bool JsonReader::Fail() {
  at_ = end_ = nullptr;
  return false;
}

char JsonReader::Peek() {
  while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t')) ++at_;
  return at_ == end_ ? '\0' : *at_;
}

bool JsonReader::Take(char wanted) { return TakeIf(wanted) || Fail(); }

bool JsonReader::TakeIf(char wanted) {
  if (Peek() != wanted || at_ == end_) return false;
  ++at_;
  return true;
}

bool JsonReader::TakeNull() {
  constexpr std::string_view kNull = "null";
  if (Peek() != 'n' || std::string_view(at_, end_ - at_).substr(0, kNull.size()) != kNull) {
    return false;
  }
  at_ += kNull.size();
  return true;
}

bool JsonReader::Flag(bool* flag) {
  const std::string_view word = Peek() == 't' ? "true" : "false";
  *flag = word == "true";
  if (at_ == nullptr) return false;
  if (std::string_view(at_, end_ - at_).substr(0, word.size()) != word) return Fail();
  at_ += word.size();
  return true;
}

bool JsonReader::Text(std::string_view* text) {
  if (!Take('"')) return false;
  const char* const begin = at_;
  bool is_ascii = true;
  for (; at_ != end_ && *at_ != '"'; ++at_) {
    const auto c = static_cast<unsigned char>(*at_);
    if (c < 0x20 || c == '\\') return Fail();
    is_ascii &= c < 0x80;
  }
  if (at_ == end_) return Fail();
  *text = {begin, static_cast<std::size_t>(at_ - begin)};
  ++at_;
  return is_ascii || IsUtf8(*text) || Fail();
}

std::string_view JsonReader::Number(bool* is_whole) {
  Peek();
  const char* at = at_;
  const auto digits = [&] {
    const char* const first = at;
    while (at != end_ && IsDigit(*at)) ++at;
    return at != first;
  };
  if (at != end_ && *at == '-') ++at;
  const bool has_zero = at != end_ && *at == '0';
  const char* const first = at;
  if (!digits() || (has_zero && at - first > 1)) return {};
  *is_whole = true;
  if (at != end_ && *at == '.') {
    *is_whole = false;
    ++at;
    if (!digits()) return {};
  }
  if (at != end_ && (*at == 'e' || *at == 'E')) {
    *is_whole = false;
    ++at;
    if (at != end_ && (*at == '+' || *at == '-')) ++at;
    if (!digits()) return {};
  }
  const std::string_view number(at_, static_cast<std::size_t>(at - at_));
  return number.size() <= kMostDigits ? number : std::string_view();
}

bool JsonReader::Whole(std::int64_t* number) {
  bool is_whole = false;
  const std::string_view text = Number(&is_whole);
  if (text.empty() || !is_whole) return Fail();
  const char* const end = text.data() + text.size();
  if (std::from_chars(text.data(), end, *number).ec != std::errc()) return Fail();
  at_ = end;
  return true;
}

bool JsonReader::Float(float* number) {
  bool is_whole = false;
  const std::string_view text = Number(&is_whole);
  if (text.empty()) return Fail();
  const char* const end = text.data() + text.size();
  double value = 0;
  if (std::from_chars(text.data(), end, value).ec != std::errc()) return Fail();
  if (!(std::fabs(value) <= std::numeric_limits<float>::max())) return Fail();
  // A whole number has no negative zero.
  *number = value == 0 && is_whole ? 0.0F : static_cast<float>(value);
  at_ = end;
  return true;
}

bool JsonReader::SkipList() {
  if (Peek() != '[') return Fail();
  int depth = 0;
  bool is_text = false;
  for (; at_ != end_; ++at_) {
    if (*at_ == '"') {
      is_text = !is_text;
    } else if (*at_ == '\\') {
      return Fail();
    } else if (!is_text && *at_ == '[') {
      ++depth;
    } else if (!is_text && *at_ == ']' && --depth == 0) {
      ++at_;
      return true;
    }
  }
  return Fail();
}

}  // namespace recsys
