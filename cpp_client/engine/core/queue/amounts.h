#ifndef RECSYS_ENGINE_CORE_QUEUE_AMOUNTS_H_
#define RECSYS_ENGINE_CORE_QUEUE_AMOUNTS_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace recsys {

/// The quantities counted by a queue.
enum class Amount { kRows = 0, kIds, kBytes };
inline constexpr std::array<Amount, 3> kAllAmounts = {Amount::kRows, Amount::kIds, Amount::kBytes};

/// One number per quantity.
template <typename Number>
struct PerAmount {
  std::array<Number, kAllAmounts.size()> numbers{};

  Number& operator[](Amount what) { return numbers[static_cast<std::size_t>(what)]; }
  const Number& operator[](Amount what) const { return numbers[static_cast<std::size_t>(what)]; }
  PerAmount& operator+=(const PerAmount& other) {
    for (const Amount what : kAllAmounts) (*this)[what] += other[what];
    return *this;
  }
  PerAmount& operator-=(const PerAmount& other) {
    for (const Amount what : kAllAmounts) (*this)[what] -= other[what];
    return *this;
  }
};
using Amounts = PerAmount<std::int64_t>;

}  // namespace recsys

#endif  // RECSYS_ENGINE_CORE_QUEUE_AMOUNTS_H_
