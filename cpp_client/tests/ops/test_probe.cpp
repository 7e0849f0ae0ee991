// Reads of rows: every cache line once, and nothing beside the rows.

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "ops/cpu/probe.h"

namespace recsys::ops {
namespace {

TEST(Probe, ReadsEveryRowWhateverIsPrefetched) {
  // The exact size: the address sanitizer sees what is read behind it.
  std::vector<std::uint8_t> data(1000);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::uint8_t>(i * 37 + 11);
  std::vector<std::int64_t> offsets, sizes;
  std::uint8_t expected = 0;
  for (std::int64_t at = 999; at >= 0; at -= 7) {
    offsets.push_back(at);
    sizes.push_back(1);
    expected ^= data[static_cast<std::size_t>(at)];
  }
  const auto count = static_cast<std::int64_t>(offsets.size());
  for (const std::int64_t ahead : {0, 1, 16, 1000}) {
    EXPECT_EQ(ReadRows(data.data(), offsets.data(), sizes.data(), count, ahead), expected);
  }
}

TEST(Probe, ReadsOneByteOfEachCacheLine) {
  alignas(64) std::uint8_t data[256] = {};
  data[60] = 1;
  data[64] = 2;
  data[128] = 4;
  data[61] = data[129] = data[192] = 8;
  const std::int64_t offset = 60, size = 70, none = 0;
  EXPECT_EQ(ReadRows(data, &offset, &size, 1, 0), 7);
  EXPECT_EQ(ReadRows(data, &offset, &none, 1, 16), 0);
  EXPECT_EQ(ReadRows(data, &offset, &size, 0, 16), 0);
}

}  // namespace
}  // namespace recsys::ops
