// Linear layers, in terms of Lanes: included once for each instruction set, after its lanes_*.h.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "ops/kernels/kernels.h"
#include "ops/scratch.h"

namespace recsys::ops {
namespace {

/// Rows of inputs that are prepared at a time, and stay in the cache for all panels.
constexpr std::int64_t kTileRows = 48;
constexpr std::int64_t kLane = 16;
constexpr std::int64_t kLaneBytes = 64;
/// Adding it to a number of less than 2^22 rounds to a whole number, which its last bits then hold.
constexpr float kRounding = 12582912.0F;
constexpr std::uint32_t kMagnitude = 0x7fffffff, kSign = 0x80000000, kInfinity = 0x7f800000;
/// Rows of smaller numbers are zeros as int8.
constexpr float kLeast = 1e-30F;

constexpr std::int64_t kCacheLine = 64;

/// Fetches a row into the cache of a level: 3 for the nearest, 2 for the one behind it.
template <int kLevel>
inline void Prefetch(const std::uint8_t* row, std::int64_t row_bytes) {
  const auto into = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(row) % kCacheLine);
  for (std::int64_t at = -into; at < row_bytes; at += kCacheLine) {
    __builtin_prefetch(row + at, 0, kLevel);
  }
}

inline void FetchSome(Ahead* ahead) {
  if (ahead == nullptr) return;
  const std::int64_t count = std::min(ahead->at_once, ahead->num_rows);
  for (std::int64_t i = 0; i < count; ++i) Prefetch<2>(ahead->rows[i], ahead->row_bytes);
  ahead->rows += count;
  ahead->num_rows -= count;
}

/// A row's int8 inputs stand for (byte - zero) * scale.
struct ByteScale {
  float scale = 0;
  std::int32_t zero = 0;
};

/// A tile of inputs as kernels read them: four bytes hold a group.
struct Tile {
  const char* data = nullptr;
  std::int64_t stride_bytes = 0;
  /// Of each row; only int8.
  const ByteScale* scales = nullptr;

  std::int32_t Group(std::int64_t row, std::int64_t group) const {
    std::int32_t four = 0;
    std::memcpy(&four, data + row * stride_bytes + 4 * group, sizeof(four));
    return four;
  }
};

/// Rounds a row to bytes by its own largest number. A row with NaN or infinity has the scale NaN.
inline ByteScale ToBytes(const float* from, std::int64_t count, std::int64_t padded,
                         std::uint8_t* to) {
  std::uint32_t largest = 0, negative = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, from + i, sizeof(bits));
    largest = std::max(largest, bits & kMagnitude);
    negative |= static_cast<std::uint32_t>(bits > kSign);
  }
  ByteScale made;
  made.zero = negative != 0 ? 128 : 0;
  const float limit = negative != 0 ? 127 : 255;
  float top = 0;
  std::memcpy(&top, &largest, sizeof(top));
  if (largest >= kInfinity || top < kLeast) {
    made.scale = largest >= kInfinity ? std::numeric_limits<float>::quiet_NaN() : 0;
    std::fill_n(to, padded, static_cast<std::uint8_t>(made.zero));
    return made;
  }
  made.scale = top / limit;
  const float inverse = limit / top;
  for (std::int64_t i = 0; i < count; ++i) {
    const float rounded = from[i] * inverse + kRounding;
    std::uint32_t bits = 0;
    std::memcpy(&bits, &rounded, sizeof(bits));
    to[i] = static_cast<std::uint8_t>(bits + static_cast<std::uint32_t>(made.zero));
  }
  std::fill(to + count, to + padded, static_cast<std::uint8_t>(made.zero));
  return made;
}

/// Prepares rows for weights of a type.
template <WeightType kType>
Tile TileOf(const Packed& weights, Rows in, std::int64_t first, std::int64_t num_rows) {
  const float* const from = in.data + first * in.stride;
  if constexpr (kType == WeightType::kFloat32) {
    return {reinterpret_cast<const char*>(from), in.stride * 4, nullptr};
  }
  const std::int64_t row_bytes = weights.num_groups() * 4;
  // Rows that are a power of two apart would share few sets of the cache.
  const std::int64_t stride = (row_bytes + kLaneBytes - 1) / kLaneBytes * kLaneBytes + kLaneBytes;
  char* const data = ScratchOf(Scratch::kTile, stride * kTileRows);
  auto* const scales = reinterpret_cast<ByteScale*>(
      ScratchOf(Scratch::kScales, kTileRows * std::int64_t{sizeof(ByteScale)}));
  for (std::int64_t row = 0; row < num_rows; ++row) {
    const float* const values = from + row * in.stride;
    char* const to = data + row * stride;
    if constexpr (kType == WeightType::kBfloat16) {
      auto* const halves = reinterpret_cast<std::uint16_t*>(to);
      Lanes::ToBfloat16(values, weights.num_inputs, halves);
      std::fill(halves + weights.num_inputs, halves + row_bytes / 2, std::uint16_t{0});
    } else {
      scales[row] =
          ToBytes(values, weights.num_inputs, row_bytes, reinterpret_cast<std::uint8_t*>(to));
    }
  }
  return {data, stride, scales};
}

inline float Sigmoid(float value) { return 1 / (1 + std::exp(-value)); }

/// Finishes 16 outputs of a row and writes those that exist.
template <WeightType kType>
inline void Finish(const Packed& weights, const Lanes::Sums<kType>& sums, const ByteScale* scale,
                   std::int64_t column, Activation activation, float* to) {
  Lanes::Floats values;
  if constexpr (kType == WeightType::kInt8) {
    values =
        Lanes::Times(Lanes::Shifted(sums, scale->zero, weights.sum + column),
                     Lanes::Times(Lanes::Load(weights.scale + column), Lanes::All(scale->scale)));
  } else {
    values = sums.AsFloats();
  }
  values = Lanes::Add(values, Lanes::Load(weights.bias + column));
  if (activation == Activation::kRelu) values = Lanes::Max(values, Lanes::All(0));
  const std::int64_t count = std::min(kLane, weights.num_outputs - column);
  if (count == kLane) {
    Lanes::Store(to + column, values);
  } else {
    float all[kLane];
    Lanes::Store(all, values);
    std::copy_n(all, count, to + column);
  }
  if (activation == Activation::kSigmoid) {
    for (std::int64_t i = column; i < column + count; ++i) to[i] = Sigmoid(to[i]);
  }
}

/// Computes kRows rows of kLanes times 16 columns, from `column` on.
template <WeightType kType, int kRows, int kLanes>
void Block(const Packed& weights, const Tile& tile, std::int64_t row, std::int64_t column,
           Activation activation, float* out, std::int64_t out_stride) {
  const std::int64_t num_groups = weights.num_groups();
  const char* at[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    const std::int64_t first = column + lane * kLane;
    at[lane] = weights.panels + first / kPanelColumns * weights.panel_bytes() +
               first % kPanelColumns / kLane * kLaneBytes;
  }
  Lanes::Sums<kType> sums[kRows][kLanes];
  for (std::int64_t group = 0; group < num_groups; ++group) {
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const std::int32_t in = tile.Group(row + r, group);
#pragma GCC unroll 8
      for (int lane = 0; lane < kLanes; ++lane) {
        sums[r][lane].Add(in, at[lane] + group * kGroupBytes);
      }
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int lane = 0; lane < kLanes; ++lane) {
      Finish<kType>(weights, sums[r][lane],
                    kType == WeightType::kInt8 ? tile.scales + row + r : nullptr,
                    column + lane * kLane, activation, out + (row + r) * out_stride);
    }
  }
}

/// Calls Block for as many rows as `num_rows` says.
template <WeightType kType, int kLanes, int kRows = Lanes::kMaxRows>
void BlockOf(std::int64_t num_rows, const Packed& weights, const Tile& tile, std::int64_t row,
             std::int64_t column, Activation activation, float* out, std::int64_t out_stride) {
  if (num_rows == kRows) {
    Block<kType, kRows, kLanes>(weights, tile, row, column, activation, out, out_stride);
  } else if constexpr (kRows > 1) {
    BlockOf<kType, kLanes, kRows - 1>(num_rows, weights, tile, row, column, activation, out,
                                      out_stride);
  }
}

template <WeightType kType>
void LinearOf(const Packed& weights, Rows in, std::int64_t num_rows, Activation activation,
              OutRows out, Ahead* ahead) {
  constexpr int kTogether = Lanes::kSinglePanels * 2;
  const std::int64_t num_lanes = (weights.num_outputs + kLane - 1) / kLane;
  for (std::int64_t first = 0; first < num_rows; first += kTileRows) {
    const std::int64_t rows = std::min(kTileRows, num_rows - first);
    const Tile tile = TileOf<kType>(weights, in, first, rows);
    float* const to = out.data + first * out.stride;
    const auto block = [&](auto lanes, std::int64_t lane, std::int64_t row, std::int64_t count) {
      BlockOf<kType, lanes()>(count, weights, tile, row, lane * kLane, activation, to, out.stride);
    };
    std::int64_t lane = 0;
    if (rows == 1) {
      for (; lane + kTogether <= num_lanes; lane += kTogether) {
        FetchSome(ahead);
        Block<kType, 1, kTogether>(weights, tile, 0, lane * kLane, activation, to, out.stride);
      }
    }
    // Blocks of about the same number of rows.
    const std::int64_t num_blocks = (rows + Lanes::kMaxRows - 1) / Lanes::kMaxRows;
    for (; lane < num_lanes; lane += 2) {
      for (std::int64_t i = 0; i < num_blocks; ++i) {
        FetchSome(ahead);
        const std::int64_t row = rows * i / num_blocks;
        const std::int64_t count = rows * (i + 1) / num_blocks - row;
        if (lane + 1 < num_lanes) {
          block(std::integral_constant<int, 2>(), lane, row, count);
        } else {
          block(std::integral_constant<int, 1>(), lane, row, count);
        }
      }
    }
  }
}

void Linear(const Packed& weights, Rows in, std::int64_t num_rows, Activation activation,
            OutRows out, Ahead* ahead) {
  switch (weights.type) {
    case WeightType::kFloat32:
      return LinearOf<WeightType::kFloat32>(weights, in, num_rows, activation, out, ahead);
    case WeightType::kBfloat16:
      return LinearOf<WeightType::kBfloat16>(weights, in, num_rows, activation, out, ahead);
    case WeightType::kInt8:
      return LinearOf<WeightType::kInt8>(weights, in, num_rows, activation, out, ahead);
  }
}

}  // namespace
}  // namespace recsys::ops
