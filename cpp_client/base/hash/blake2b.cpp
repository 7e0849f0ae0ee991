#include "base/hash/blake2b.h"

#include <cstring>
#include <stdexcept>

namespace recsys {
namespace {

constexpr std::size_t kBlock = 128, kDigest = 8;
// The first 64 bits of the fractions of the square roots of the first primes, as in SHA-512.
constexpr std::array<std::uint64_t, 8> kStart{
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179};
// The order in which rounds read the words of a block; the last two are the first two again.
constexpr unsigned char kOrder[12][16] = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
                                          {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
                                          {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
                                          {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
                                          {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
                                          {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
                                          {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
                                          {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
                                          {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
                                          {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
                                          {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
                                          {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3}};

std::uint64_t RotatedRight(std::uint64_t word, int bits) {
  return word >> bits | word << (64 - bits);
}

/// Mixes four words of the working state with two of the block.
[[gnu::always_inline]] inline void Mix(std::uint64_t* v, std::size_t a, std::size_t b,
                                       std::size_t c, std::size_t d, std::uint64_t x,
                                       std::uint64_t y) {
  v[a] += v[b] + x;
  v[d] = RotatedRight(v[d] ^ v[a], 32);
  v[c] += v[d];
  v[b] = RotatedRight(v[b] ^ v[c], 24);
  v[a] += v[b] + y;
  v[d] = RotatedRight(v[d] ^ v[a], 16);
  v[c] += v[d];
  v[b] = RotatedRight(v[b] ^ v[c], 63);
}

/// Adds a block to a state; `num_bytes`: of all blocks up to this one, without padding. The rounds
/// are unrolled, so that the compiler knows all places.
void Compress(const unsigned char* block, std::uint64_t num_bytes, bool is_last,
              std::array<std::uint64_t, 8>* state) {
  std::uint64_t words[16], v[16];
  std::memcpy(words, block, kBlock);
  std::memcpy(v, state->data(), sizeof(*state));
  std::memcpy(v + 8, kStart.data(), sizeof(kStart));
  v[12] ^= num_bytes;
  if (is_last) v[14] = ~v[14];
#pragma GCC unroll 12
  for (const auto& order : kOrder) {
#pragma GCC unroll 4
    for (std::size_t i = 0; i < 4; ++i) {
      Mix(v, i, 4 + i, 8 + i, 12 + i, words[order[2 * i]], words[order[2 * i + 1]]);
    }
#pragma GCC unroll 4
    for (std::size_t i = 0; i < 4; ++i) {
      Mix(v, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4, words[order[8 + 2 * i]],
          words[order[9 + 2 * i]]);
    }
  }
  for (std::size_t i = 0; i < 8; ++i) (*state)[i] ^= v[i] ^ v[i + 8];
}

}  // namespace

KeyedBlake2b::KeyedBlake2b(std::string_view key, std::string_view person) : first_(kStart) {
  if (key.empty() || key.size() > kMaxKeyBytes || person.size() > kMaxPersonBytes) {
    throw std::invalid_argument("key, person: expected 1 to 64 and up to 16 bytes");
  }
  std::array<std::uint64_t, 2> words{};
  std::memcpy(words.data(), person.data(), person.size());
  // The parameters: bytes of the digest and of the key, and one node that is a leaf and the root.
  first_[0] ^= 0x01010000 ^ (key.size() << 8) ^ kDigest;
  first_[6] ^= words[0];
  first_[7] ^= words[1];
  std::memcpy(key_block_.data(), key.data(), key.size());
  keyed_ = first_;
  Compress(key_block_.data(), kBlock, false, &keyed_);
}

std::uint64_t KeyedBlake2b::Hash(std::string_view text) const {
  State state = text.empty() ? first_ : keyed_;
  std::uint64_t num_bytes = kBlock;
  if (text.empty()) {
    Compress(key_block_.data(), num_bytes, true, &state);
    return state[0];
  }
  for (; text.size() > kBlock; text.remove_prefix(kBlock)) {
    num_bytes += kBlock;
    Compress(reinterpret_cast<const unsigned char*>(text.data()), num_bytes, false, &state);
  }
  std::array<unsigned char, kBlock> last{};
  std::memcpy(last.data(), text.data(), text.size());
  Compress(last.data(), num_bytes + text.size(), true, &state);
  return state[0];
}

}  // namespace recsys
