#include "ops/cpu/probe.h"

#include <algorithm>

namespace recsys::ops {
namespace {

constexpr std::int64_t kLine = 64;

/// Calls `use` with a byte of each cache line that a row touches.
template <typename Use>
void ForLines(const std::uint8_t* row, std::int64_t size, const Use& use) {
  const std::int64_t into =
      static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(row)) % kLine;
  for (std::int64_t at = 0; at < size; at += at == 0 ? kLine - into : kLine) use(row + at);
}

}  // namespace

std::uint8_t ReadRows(const std::uint8_t* data, const std::int64_t* offsets,
                      const std::int64_t* sizes, std::int64_t num_rows, std::int64_t ahead) {
  std::uint8_t bytes = 0;
  const auto prefetch = [&](std::int64_t i) {
    ForLines(data + offsets[i], sizes[i], [](const std::uint8_t* at) { __builtin_prefetch(at); });
  };
  const auto read = [&](std::int64_t i) {
    ForLines(data + offsets[i], sizes[i], [&bytes](const std::uint8_t* at) { bytes ^= *at; });
  };
  const std::int64_t num_followed = ahead == 0 ? 0 : std::max<std::int64_t>(num_rows - ahead, 0);
  for (std::int64_t i = 0; i < std::min(ahead, num_rows); ++i) prefetch(i);
  for (std::int64_t i = 0; i < num_followed; ++i) {
    prefetch(i + ahead);
    read(i);
  }
  for (std::int64_t i = num_followed; i < num_rows; ++i) read(i);
  return bytes;
}

}  // namespace recsys::ops
