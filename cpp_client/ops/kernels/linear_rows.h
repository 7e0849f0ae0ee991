// What linear layers do with rows before and after their products are summed, in terms of Lanes:
// included once for each instruction set, after its lanes_*.h.

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

/// Fetches some of the rows that are left.
inline void FetchSome(Ahead* ahead) {
  const std::int64_t count = std::min(ahead->at_once, ahead->num_rows);
  for (std::int64_t i = 0; i < count; ++i) Prefetch<2>(ahead->rows[i], ahead->row_bytes);
  ahead->rows += count;
  ahead->num_rows -= count;
}

/// A row's whole inputs stand for (input - zero) * scale; zero is 0 unless they are bytes.
struct WholeScale {
  float scale = 0;
  std::int32_t zero = 0;
};

/// A tile of inputs as kernels read them: four bytes hold a group.
struct Tile {
  const char* data = nullptr;
  std::int64_t stride_bytes = 0;
  /// By row; for whole numbers alone.
  const WholeScale* scales = nullptr;

  std::int32_t Group(std::int64_t row, std::int64_t group) const {
    std::int32_t four = 0;
    std::memcpy(&four, data + row * stride_bytes + 4 * group, sizeof(four));
    return four;
  }
};

/// Rounds a row to whole numbers of 8 bits, by its own largest number, which become items of uint8
/// or int16. A row with NaN or infinity has the scale NaN.
template <typename Item>
WholeScale ToWhole(const float* from, std::int64_t count, std::int64_t padded, Item* to) {
  std::uint32_t largest = 0, negative = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, from + i, sizeof(bits));
    largest = std::max(largest, bits & kMagnitude);
    negative |= static_cast<std::uint32_t>(bits > kSign);
  }
  WholeScale made;
  made.zero = sizeof(Item) == 1 && negative != 0 ? 128 : 0;
  const float limit = negative != 0 ? 127 : 255;
  float top = 0;
  std::memcpy(&top, &largest, sizeof(top));
  if (largest >= kInfinity || top < kLeast) {
    made.scale = largest >= kInfinity ? std::numeric_limits<float>::quiet_NaN() : 0;
    std::fill_n(to, padded, static_cast<Item>(made.zero));
    return made;
  }
  made.scale = top / limit;
  const float inverse = limit / top;
  for (std::int64_t i = 0; i < count; ++i) {
    const float rounded = from[i] * inverse + kRounding;
    std::uint32_t bits = 0;
    std::memcpy(&bits, &rounded, sizeof(bits));
    to[i] = static_cast<Item>(bits + static_cast<std::uint32_t>(made.zero));
  }
  std::fill(to + count, to + padded, static_cast<Item>(made.zero));
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
  auto* const scales = reinterpret_cast<WholeScale*>(
      ScratchOf(Scratch::kScales, kTileRows * std::int64_t{sizeof(WholeScale)}));
  for (std::int64_t row = 0; row < num_rows; ++row) {
    const float* const values = from + row * in.stride;
    char* const to = data + row * stride;
    if constexpr (kType == WeightType::kBfloat16) {
      auto* const halves = reinterpret_cast<std::uint16_t*>(to);
      Lanes::ToBfloat16(values, weights.num_inputs, halves);
      std::fill(halves + weights.num_inputs, halves + row_bytes / 2, std::uint16_t{0});
    } else {
      using Item = std::conditional_t<kType == WeightType::kInt8, std::uint8_t, std::int16_t>;
      scales[row] = ToWhole(values, weights.num_inputs, row_bytes / std::int64_t{sizeof(Item)},
                            reinterpret_cast<Item*>(to));
    }
  }
  return {data, stride, scales};
}

inline float Sigmoid(float value) { return 1 / (1 + std::exp(-value)); }

/// What the sums of 16 columns are multiplied by.
template <WeightType kType>
struct Scales {
  Scales(const Packed& /*weights*/, std::int64_t /*column*/) {}
  Lanes::Floats Of(const Lanes::Sums<kType>& sums, const Tile& /*tile*/,
                   std::int64_t /*row*/) const {
    return sums.AsFloats();
  }
};

template <WeightType kType>
struct WholeScales {
  WholeScales(const Packed& weights, std::int64_t column)
      : scale(Lanes::Load(weights.scale + column)), weight_sums(weights.sum + column) {}
  Lanes::Floats Of(const Lanes::Sums<kType>& sums, const Tile& tile, std::int64_t row) const {
    const WholeScale of_row = tile.scales[row];
    return Lanes::Times(Lanes::Shifted(sums, of_row.zero, weight_sums),
                        Lanes::Times(scale, Lanes::All(of_row.scale)));
  }
  Lanes::Floats scale;
  const std::int32_t* weight_sums;
};

template <>
struct Scales<WeightType::kInt8> : WholeScales<WeightType::kInt8> {
  using WholeScales::WholeScales;
};
template <>
struct Scales<WeightType::kInt16> : WholeScales<WeightType::kInt16> {
  using WholeScales::WholeScales;
};

/// Where a layer's outputs go, and what becomes of them first.
struct Outputs {
  OutRows rows;
  Activation activation = Activation::kNone;
};

/// Writes kRows rows of kLanes times 16 columns, from `column` on, whose products are summed.
/// Inlined, so that the sums stay in registers.
template <WeightType kType, int kRows, int kLanes>
[[gnu::always_inline]] inline void Finish(const Packed& weights, const Tile& tile, std::int64_t row,
                                          std::int64_t column, Outputs outputs,
                                          const Lanes::Sums<kType> (&sums)[kRows][kLanes]) {
  const OutRows out = outputs.rows;
  constexpr std::int64_t kColumns = kLanes * kLane;
  const std::int64_t num_columns = std::min(kColumns, weights.num_outputs - column);
  float* const to = out.data + row * out.stride + column;
  // Whole lanes are written: of the last columns beside the output.
  float ends[kRows * kColumns];
  const bool is_whole = num_columns == kColumns;
  const OutRows at_first = is_whole ? OutRows{to, out.stride} : OutRows{ends, kColumns};
  const Lanes::Floats least = Lanes::All(
      outputs.activation == Activation::kRelu ? 0 : -std::numeric_limits<float>::infinity());
#pragma GCC unroll 8
  for (int lane = 0; lane < kLanes; ++lane) {
    const std::int64_t from = column + lane * kLane;
    const Lanes::Floats bias = Lanes::Load(weights.bias + from);
    const Scales<kType> scales(weights, from);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const Lanes::Floats products = scales.Of(sums[r][lane], tile, row + r);
      Lanes::Store(at_first.data + r * at_first.stride + lane * kLane,
                   Lanes::Max(Lanes::Add(products, bias), least));
    }
  }
  const bool is_sigmoid = outputs.activation == Activation::kSigmoid;
  if (is_whole && !is_sigmoid) return;
  for (int r = 0; r < kRows; ++r) {
    float* const row_to = to + r * out.stride;
    if (!is_whole) std::copy_n(ends + r * kColumns, num_columns, row_to);
    if (!is_sigmoid) continue;
    for (std::int64_t i = 0; i < num_columns; ++i) row_to[i] = Sigmoid(row_to[i]);
  }
}

/// Returns where the weights of 16 columns begin, from `column` on.
inline const char* WeightsOf(const Packed& weights, std::int64_t column) {
  return weights.panels + column / kPanelColumns * weights.panel_bytes() +
         column % kPanelColumns / kLane * kLaneBytes;
}

}  // namespace
}  // namespace recsys::ops
