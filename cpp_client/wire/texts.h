#ifndef RECSYS_WIRE_TEXTS_H_
#define RECSYS_WIRE_TEXTS_H_

// Texts that lie one behind the other, each behind its length, and are taken off one by one
// (RawTexts::Take).

#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

namespace recsys {

/// Takes the first text off bytes that CountPrefixed has accepted: its length comes first, 4 bytes,
/// little-endian.
inline std::string_view TakePrefixed(std::string_view* bytes) {
  std::uint32_t size = 0;
  std::memcpy(&size, bytes->data(), sizeof size);
  const std::string_view text = bytes->substr(sizeof size, size);
  bytes->remove_prefix(sizeof size + text.size());
  return text;
}

/// Returns the number of texts, at most `at_most`; none if the bytes end within one of these.
inline std::optional<std::int64_t> CountPrefixed(std::string_view bytes, std::uint64_t at_most) {
  std::uint64_t count = 0;
  for (; !bytes.empty() && count < at_most; ++count) {
    std::uint32_t size = 0;
    if (bytes.size() < sizeof size) return std::nullopt;
    std::memcpy(&size, bytes.data(), sizeof size);
    if (bytes.size() - sizeof size < size) return std::nullopt;
    bytes.remove_prefix(sizeof size + size);
  }
  return static_cast<std::int64_t>(count);
}

}  // namespace recsys

#endif  // RECSYS_WIRE_TEXTS_H_
