#include "base/hash/xxh64.h"

#include <cstring>

namespace recsys {
namespace {

constexpr std::uint64_t kPrime1 = 0x9e3779b185ebca87;
constexpr std::uint64_t kPrime2 = 0xc2b2ae3d27d4eb4f;
constexpr std::uint64_t kPrime3 = 0x165667b19e3779f9;
constexpr std::uint64_t kPrime4 = 0x85ebca77c2b2ae63;
constexpr std::uint64_t kPrime5 = 0x27d4eb2f165667c5;

constexpr std::uint64_t Rotated(std::uint64_t value, int bits) {
  return value << bits | value >> (64 - bits);
}

/// Takes a number off the front; the hash is defined for little-endian ones, as this machine has.
template <typename T>
T Take(std::string_view* bytes) {
  T value;
  std::memcpy(&value, bytes->data(), sizeof value);
  bytes->remove_prefix(sizeof value);
  return value;
}

constexpr std::uint64_t Round(std::uint64_t sum, std::uint64_t input) {
  return Rotated(sum + input * kPrime2, 31) * kPrime1;
}

constexpr std::uint64_t Merged(std::uint64_t hash, std::uint64_t sum) {
  return (hash ^ Round(0, sum)) * kPrime1 + kPrime4;
}

/// Hashes all whole stripes of 32 bytes, of which there is at least one.
std::uint64_t HashOfStripes(std::string_view* bytes) {
  std::uint64_t a = kPrime1 + kPrime2, b = kPrime2, c = 0, d = 0 - kPrime1;
  while (bytes->size() >= 32) {
    a = Round(a, Take<std::uint64_t>(bytes));
    b = Round(b, Take<std::uint64_t>(bytes));
    c = Round(c, Take<std::uint64_t>(bytes));
    d = Round(d, Take<std::uint64_t>(bytes));
  }
  const std::uint64_t hash = Rotated(a, 1) + Rotated(b, 7) + Rotated(c, 12) + Rotated(d, 18);
  return Merged(Merged(Merged(Merged(hash, a), b), c), d);
}

}  // namespace

std::uint64_t Xxh64(std::string_view bytes) {
  const std::uint64_t size = bytes.size();
  std::uint64_t hash = (size >= 32 ? HashOfStripes(&bytes) : kPrime5) + size;
  while (bytes.size() >= 8) {
    hash = Rotated(hash ^ Round(0, Take<std::uint64_t>(&bytes)), 27) * kPrime1 + kPrime4;
  }
  if (bytes.size() >= 4) {
    hash = Rotated(hash ^ Take<std::uint32_t>(&bytes) * kPrime1, 23) * kPrime2 + kPrime3;
  }
  while (!bytes.empty()) {
    hash = Rotated(hash ^ Take<std::uint8_t>(&bytes) * kPrime5, 11) * kPrime1;
  }
  hash = (hash ^ hash >> 33) * kPrime2;
  hash = (hash ^ hash >> 29) * kPrime3;
  return hash ^ hash >> 32;
}

}  // namespace recsys
