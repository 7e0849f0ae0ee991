#ifndef RECSYS_TESTS_COLLIDING_NAMES_H_
#define RECSYS_TESTS_COLLIDING_NAMES_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

namespace recsys {

/// So many names of sixteen letters and signs, no two the same, for which std::hash of GNU's
/// library gives one number: what anybody can make who wants a hash table to be slow. (The hash is
/// Murmur's second of 64 bits with a seed that all know; each of its steps can be undone.)
inline std::vector<std::string> CollidingNames(std::size_t count) {
  constexpr std::uint64_t kFactor = 0xc6a4a7935bd1e995, kSeed = 0xc70f6907, kSame = 1;
  // kFactor * kInverse is 1: Newton's steps double the bits that are right.
  std::uint64_t inverse = kFactor;
  for (int i = 0; i < 6; ++i) inverse *= 2 - kFactor * inverse;
  const auto mixed = [](std::uint64_t bits) { return bits ^ bits >> 47; };
  const auto is_plain = [](const std::string& name) {
    return std::all_of(name.begin(), name.end(),
                       [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; });
  };
  std::vector<std::string> names;
  for (std::uint64_t number = 0; names.size() < count; ++number) {
    std::uint64_t words[2] = {};
    char digits[8];
    for (int i = 0; i < 8; ++i) digits[i] = static_cast<char>('0' + (number >> (4 * i) & 15));
    std::memcpy(&words[0], digits, 8);
    const std::uint64_t start = kSeed ^ 16 * kFactor;
    const std::uint64_t first = (start ^ mixed(words[0] * kFactor) * kFactor) * kFactor;
    words[1] = mixed((kSame ^ first) * inverse) * inverse;
    std::string name(16, '\0');
    std::memcpy(name.data(), words, 16);
    if (is_plain(name)) names.push_back(std::move(name));
  }
  return names;
}

/// An object of JSON with these names.
inline std::string ObjectOfNames(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "{\"" : ",\"") + name + "\":0";
  return text + "}";
}

/// Seconds of the processor's that a call takes.
template <typename Call>
double CpuSeconds(Call call) {
  const std::clock_t start = std::clock();
  call();
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

}  // namespace recsys

#endif  // RECSYS_TESTS_COLLIDING_NAMES_H_
