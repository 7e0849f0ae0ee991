#include "request/texts.h"

#include <charconv>
#include <cstring>
#include <system_error>

#include "base/hash/xxh64.h"

namespace recsys {
namespace {

constexpr std::size_t kMostFloatDigits = 15;

std::optional<std::int64_t> HashOf(std::string_view text) {
  if (text.empty()) return std::nullopt;
  return HashOfText(text);
}

bool IsBlank(char c) { return c == ' ' || c == '\t'; }

/// Returns a value of a list without the blanks that tables have around it.
std::string_view Stripped(std::string_view text) {
  constexpr const char* kBlanks = " \t\r\n";
  const std::size_t start = text.find_first_not_of(kBlanks);
  if (start == std::string_view::npos) return {};
  return text.substr(start, text.find_last_not_of(kBlanks) - start + 1);
}

bool IsBracketed(std::string_view text) {
  if (text.size() < 2) return false;
  const char first = text.front(), last = text.back();
  return (first == '[' && last == ']') || (first == '{' && last == '}') ||
         (first == '(' && last == ')');
}

/// Returns a whole number without what tables have around it: blanks, and the point and zeros
/// behind numbers that were floats, of at most 15 digits, which floats of 64 bits do not round.
std::string_view WithoutRest(std::string_view text) {
  while (!text.empty() && IsBlank(text.front())) text.remove_prefix(1);
  while (!text.empty() && IsBlank(text.back())) text.remove_suffix(1);
  const std::size_t point = text.find('.');
  if (point == std::string_view::npos) return text;
  const std::string_view whole = text.substr(0, point);
  const std::size_t first = whole.find_first_of("123456789");
  const bool is_exact = first == std::string_view::npos || whole.size() - first <= kMostFloatDigits;
  const bool has_zeros = text.find_first_not_of('0', point + 1) == std::string_view::npos;
  return is_exact && has_zeros ? whole : text;
}

/// Returns the number for -?[0-9]+, also with blanks around it and as 12.0; none for other texts,
/// and beyond int64.
std::optional<std::int64_t> DecimalOf(std::string_view text) {
  text = WithoutRest(text);
  std::int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end) return std::nullopt;
  return number;
}

std::string_view TakeView(std::string_view* views) {
  std::string_view text;
  std::memcpy(static_cast<void*>(&text), views->data(), sizeof(std::string_view));
  views->remove_prefix(sizeof(std::string_view));
  return text;
}

}  // namespace

std::int64_t HashOfText(std::string_view text) {
  return static_cast<std::int64_t>(Xxh64(text) << 1 >> 1);
}

RawTexts RawTexts::Of(Span<const std::string_view> texts) {
  return {{reinterpret_cast<const char*>(texts.data()), texts.size() * sizeof(std::string_view)},
          static_cast<std::int64_t>(texts.size()),
          &TakeView};
}

std::optional<WrongText> WriteIdsOfTexts(const SparseInput& input, const RawTexts& texts,
                                         std::int64_t* ids) {
  const auto id_of = input.strings.empty() ? &DecimalOf : &HashOf;
  std::string_view rest = texts.bytes;
  for (std::int64_t i = 0; i < texts.num_texts; ++i) {
    const std::string_view given = texts.take(&rest);
    std::string_view text = given;
    if (!input.separator.empty()) {
      text = Stripped(given);
      const bool is_list = text.find(input.separator) != std::string_view::npos;
      if (is_list || IsBracketed(text)) return WrongText{given, i, true};
    }
    const std::optional<std::int64_t> id = id_of(text);
    if (!id) return WrongText{given, i, false};
    ids[i] = *id;
  }
  return std::nullopt;
}

}  // namespace recsys
