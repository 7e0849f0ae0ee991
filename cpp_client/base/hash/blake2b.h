#ifndef RECSYS_BASE_HASH_BLAKE2B_H_
#define RECSYS_BASE_HASH_BLAKE2B_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace recsys {

/// BLAKE2b with a key and digests of 8 bytes (RFC 7693, and the personalization of its authors'
/// paper). Immutable.
class KeyedBlake2b {
 public:
  static constexpr std::size_t kMaxKeyBytes = 64, kMaxPersonBytes = 16;

  /// Throws std::invalid_argument if the key is empty, or one of them is too long.
  KeyedBlake2b(std::string_view key, std::string_view person);

  /// Returns a text's digest as a little-endian number.
  std::uint64_t Hash(std::string_view text) const;

 private:
  using State = std::array<std::uint64_t, 8>;
  /// After the key's block, and before it: a text that is empty ends with the key's block.
  State keyed_{}, first_{};
  std::array<unsigned char, 128> key_block_{};
};

}  // namespace recsys

#endif  // RECSYS_BASE_HASH_BLAKE2B_H_
