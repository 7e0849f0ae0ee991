#include "check/requests/texts.h"

#include <charconv>
#include <cstring>
#include <system_error>

#include "base/xxh64.h"

namespace recsys {
namespace {

std::optional<std::int64_t> HashOf(std::string_view text) {
  if (text.empty()) return std::nullopt;
  return HashOfText(text);
}

/// Returns the number for -?[0-9]+; none for other texts, and beyond int64.
std::optional<std::int64_t> DecimalOf(std::string_view text) {
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
    const std::string_view text = texts.take(&rest);
    const std::optional<std::int64_t> id = id_of(text);
    if (!id) return WrongText{text, i};
    ids[i] = *id;
  }
  return std::nullopt;
}

}  // namespace recsys
