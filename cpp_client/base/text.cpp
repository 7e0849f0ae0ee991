#include "base/text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <map>
#include <unordered_map>

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

namespace {

// Ratios from 0 to 1: the least one that counts as close, and how far below the best one others may
// be.
constexpr double kNear = 0.6;
constexpr double kAsNear = 0.05;
// Longer names are compared by their beginning: the comparison takes time proportional to the
// product of both lengths.
constexpr std::size_t kMaxCompared = 1000;

using Codes = std::vector<std::uint32_t>;

Codes CodesOf(std::string_view text) {
  Codes codes;
  for (std::size_t at = 0; at < text.size() && codes.size() < kMaxCompared;) {
    const Utf8Char found = CharAt(text, at);
    codes.push_back(found.code);
    at += found.num_bytes;
  }
  return codes;
}

/// The Ratcliff-Obershelp ratio as Python's difflib computes it: twice the characters in the
/// longest common run and, recursively, in those to its left and right, over all characters.
class Matcher {
 public:
  explicit Matcher(const Codes& b) : b_(b) {
    for (std::size_t j = 0; j < b.size(); ++j) places_[b[j]].push_back(j);
    if (b.size() < 200) return;
    // In long texts, difflib starts no run at characters that make up more than a hundredth of the
    // text.
    for (auto at = places_.begin(); at != places_.end();) {
      at = at->second.size() > b.size() / 100 + 1 ? places_.erase(at) : std::next(at);
    }
  }

  double Ratio(const Codes& a) const {
    const std::size_t num = a.size() + b_.size();
    if (num == 0) return 1.0;
    return 2.0 * static_cast<double>(NumMatching(a)) / static_cast<double>(num);
  }

 private:
  struct Area {
    std::size_t a_start, a_end, b_start, b_end;
  };
  struct Run {
    std::size_t a, b, size;
  };

  std::size_t NumMatching(const Codes& a) const {
    std::size_t sum = 0;
    std::vector<Area> left{{0, a.size(), 0, b_.size()}};
    while (!left.empty()) {
      const Area area = left.back();
      left.pop_back();
      const Run run = Longest(a, area);
      if (run.size == 0) continue;
      sum += run.size;
      left.push_back({area.a_start, run.a, area.b_start, run.b});
      left.push_back({run.a + run.size, area.a_end, run.b + run.size, area.b_end});
    }
    return sum;
  }

  Run Longest(const Codes& a, const Area& area) const {
    Run best{area.a_start, area.b_start, 0};
    // Indexed by the position in b plus 1: the length of the run that ends there and at the
    // previous position in a.
    std::vector<std::size_t> lengths(b_.size() + 1), next(b_.size() + 1);
    for (std::size_t i = area.a_start; i < area.a_end; ++i) {
      std::fill(next.begin(), next.end(), 0);
      const auto found = places_.find(a[i]);
      if (found != places_.end()) {
        for (const std::size_t j : found->second) {
          if (j < area.b_start || j >= area.b_end) continue;
          const std::size_t size = next[j + 1] = lengths[j] + 1;
          if (size > best.size) best = {i + 1 - size, j + 1 - size, size};
        }
      }
      lengths.swap(next);
    }
    return Extended(a, area, best);
  }

  Run Extended(const Codes& a, const Area& area, Run run) const {
    while (run.a > area.a_start && run.b > area.b_start && a[run.a - 1] == b_[run.b - 1]) {
      run = {run.a - 1, run.b - 1, run.size + 1};
    }
    while (run.a + run.size < area.a_end && run.b + run.size < area.b_end &&
           a[run.a + run.size] == b_[run.b + run.size]) {
      ++run.size;
    }
    return run;
  }

  const Codes& b_;
  std::unordered_map<std::uint32_t, std::vector<std::size_t>> places_;
};

}  // namespace

std::string NearMisses(std::string_view name, const std::vector<std::string>& known) {
  const Codes codes = CodesOf(name);
  const Matcher matcher(codes);
  std::map<std::string, double> ratios;
  double best = 0.0;
  for (const std::string& candidate : known) {
    const double ratio = ratios[candidate] = matcher.Ratio(CodesOf(candidate));
    best = std::max(best, ratio);
  }
  std::string near;
  for (const auto& [candidate, ratio] : ratios) {
    if (ratio < std::max(kNear, best - kAsNear)) continue;
    near += (near.empty() ? "" : " or ") + candidate;
  }
  return near.empty() ? "" : "; did you mean " + near + "?";
}

}  // namespace recsys
