#include "binding/ops/delta_packed.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

namespace recsys {
namespace {

constexpr std::size_t kBlock = 128, kParts = 4, kPart = kBlock / kParts;
// The longest varint; the bytes of a block besides the packed numbers.
constexpr std::size_t kVarintBytes = 10, kBlockBytes = kVarintBytes + kParts;

char* WriteVarint(std::uint64_t number, char* at) {
  for (; number >= 0x80; number >>= 7) *at++ = static_cast<char>(number | 0x80);
  *at++ = static_cast<char>(number);
  return at;
}

char* WriteSigned(std::int64_t number, char* at) {
  const auto sign = static_cast<std::uint64_t>(number >> 63);
  return WriteVarint((static_cast<std::uint64_t>(number) << 1) ^ sign, at);
}

int BitsOf(std::uint64_t number) { return number == 0 ? 0 : 64 - __builtin_clzll(number); }

/// Writes the lower bits of a part's numbers, first numbers and lower bits first.
template <typename Number>
char* Pack(const Number* numbers, int bits, char* at) {
  std::uint64_t waiting = 0;
  int num_waiting = 0;
  for (std::size_t i = 0; i < kPart; ++i) {
    const std::uint64_t number = numbers[i];
    waiting |= number << num_waiting;
    num_waiting += bits;
    if (num_waiting < 64) continue;
    std::memcpy(at, &waiting, sizeof(waiting));
    at += sizeof(waiting);
    num_waiting -= 64;
    // Those of this number that did not fit.
    waiting = num_waiting == 0 ? 0 : number >> (bits - num_waiting);
  }
  // 32 numbers end at a multiple of 32 bits.
  std::memcpy(at, &waiting, sizeof(std::uint32_t));
  return at + num_waiting / 8;
}

/// Writes up to 128 differences. `differences` has room for a block.
template <typename Unsigned>
char* WriteBlock(std::array<Unsigned, kBlock>* differences, std::size_t num_differences, char* at) {
  using Signed = std::make_signed_t<Unsigned>;
  Signed least = static_cast<Signed>((*differences)[0]);
  for (std::size_t i = 1; i < num_differences; ++i) {
    least = std::min(least, static_cast<Signed>((*differences)[i]));
  }
  at = WriteSigned(least, at);
  for (std::size_t i = 0; i < num_differences; ++i) {
    (*differences)[i] -= static_cast<Unsigned>(least);
  }
  std::fill(differences->begin() + static_cast<std::ptrdiff_t>(num_differences), differences->end(),
            Unsigned{0});
  std::array<int, kParts> bits{};
  for (std::size_t part = 0; part < kParts; ++part) {
    Unsigned all = 0;
    for (std::size_t i = 0; i < kPart; ++i) all |= (*differences)[kPart * part + i];
    bits[part] = BitsOf(all);
    *at++ = static_cast<char>(bits[part]);
  }
  for (std::size_t part = 0; part < kParts; ++part) {
    // A part without differences has zero bits.
    if (bits[part] > 0) at = Pack(differences->data() + kPart * part, bits[part], at);
  }
  return at;
}

template <typename Signed>
std::string Packed(const Signed* numbers, std::size_t num_numbers) {
  using Unsigned = std::make_unsigned_t<Signed>;
  const std::size_t num_blocks = (num_numbers + kBlock - 1) / kBlock;
  // 4 for the last write of a part, which may be longer than its bits.
  std::string packed(4 * kVarintBytes + num_blocks * (kBlockBytes + kBlock * sizeof(Signed)) + 4,
                     '\0');
  char* at = packed.data();
  at = WriteVarint(kBlock, at);
  at = WriteVarint(kParts, at);
  at = WriteVarint(num_numbers, at);
  at = WriteSigned(num_numbers == 0 ? 0 : numbers[0], at);
  std::array<Unsigned, kBlock> differences{};
  for (std::size_t begin = 1; begin < num_numbers; begin += kBlock) {
    const std::size_t num = std::min(kBlock, num_numbers - begin);
    for (std::size_t i = 0; i < num; ++i) {
      // Modulo 2 to the number of bits, as the format says.
      differences[i] = static_cast<Unsigned>(static_cast<Unsigned>(numbers[begin + i]) -
                                             static_cast<Unsigned>(numbers[begin + i - 1]));
    }
    at = WriteBlock(&differences, num, at);
  }
  packed.resize(static_cast<std::size_t>(at - packed.data()));
  return packed;
}

}  // namespace

std::string DeltaPacked(const std::int64_t* numbers, std::size_t num_numbers) {
  return Packed(numbers, num_numbers);
}

std::string DeltaPacked(const std::int32_t* numbers, std::size_t num_numbers) {
  return Packed(numbers, num_numbers);
}

}  // namespace recsys
