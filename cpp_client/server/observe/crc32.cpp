#include "server/observe/crc32.h"

#include <array>
#include <cstddef>

namespace recsys {
namespace {

constexpr std::size_t kSlices = 8;
using Tables = std::array<std::array<std::uint32_t, 256>, kSlices>;

/// Table i says what a byte becomes that i further bytes follow, so that eight bytes take one step.
Tables MakeTables() {
  Tables tables{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xEDB88320U : 0U);
    tables[0][i] = crc;
  }
  for (std::size_t slice = 1; slice < kSlices; ++slice) {
    for (std::size_t i = 0; i < 256; ++i) {
      const std::uint32_t before = tables[slice - 1][i];
      tables[slice][i] = (before >> 8) ^ tables[0][before & 0xFF];
    }
  }
  return tables;
}

}  // namespace

std::uint32_t Crc32(std::string_view data) {
  static const Tables tables = MakeTables();
  std::uint32_t crc = 0xFFFFFFFFU;
  std::size_t at = 0;
  const auto byte = [&data](std::size_t i) {
    return static_cast<std::uint32_t>(static_cast<unsigned char>(data[i]));
  };
  for (; at + kSlices <= data.size(); at += kSlices) {
    std::uint32_t next = 0;
    for (std::size_t i = 0; i < kSlices; ++i) {
      const std::uint32_t mixed = i < 4 ? byte(at + i) ^ (crc >> (8 * i) & 0xFF) : byte(at + i);
      next ^= tables[kSlices - 1 - i][mixed];
    }
    crc = next;
  }
  for (; at < data.size(); ++at) crc = (crc >> 8) ^ tables[0][(crc ^ byte(at)) & 0xFF];
  return crc ^ 0xFFFFFFFFU;
}

}  // namespace recsys
