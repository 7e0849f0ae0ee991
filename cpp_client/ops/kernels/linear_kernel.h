// Linear layers, in terms of Lanes: included once for each instruction set, after its lanes_*.h.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "ops/kernels/linear_rows.h"

namespace recsys::ops {
namespace {

/// Computes kRows rows of kLanes times 16 columns, from `column` on.
template <WeightType kType, int kRows, int kLanes>
void Block(const Packed& weights, const Tile& tile, std::int64_t row, std::int64_t column,
           Outputs outputs, Ahead* ahead) {
  const std::int64_t num_groups = weights.num_groups();
  const char* at[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) at[lane] = WeightsOf(weights, column + lane * kLane);
  Lanes::Sums<kType> sums[kRows][kLanes];
  for (std::int64_t group = 0; group < num_groups;) {
    FetchSome(ahead);
    const std::int64_t end = std::min(group + kGroupsBetween, num_groups);
    for (; group < end; ++group) {
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        const std::int32_t in = tile.Group(row + r, group);
#pragma GCC unroll 8
        for (int lane = 0; lane < kLanes; ++lane) {
          sums[r][lane].Add(in, at[lane] + group * kGroupBytes);
        }
      }
    }
  }
  Finish(weights, tile, row, column, outputs, sums);
}

/// Calls Block for as many rows as `num_rows` says.
template <WeightType kType, int kLanes, int kRows = Lanes::kMaxRows>
void BlockOf(std::int64_t num_rows, const Packed& weights, const Tile& tile, std::int64_t row,
             std::int64_t column, Outputs outputs, Ahead* ahead) {
  if (num_rows == kRows) {
    Block<kType, kRows, kLanes>(weights, tile, row, column, outputs, ahead);
  } else if constexpr (kRows > 1) {
    BlockOf<kType, kLanes, kRows - 1>(num_rows, weights, tile, row, column, outputs, ahead);
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
    const Outputs outputs = {{out.data + first * out.stride, out.stride}, activation};
    const auto block = [&](auto lanes, std::int64_t lane, std::int64_t row, std::int64_t count) {
      BlockOf<kType, lanes()>(count, weights, tile, row, lane * kLane, outputs, ahead);
    };
    std::int64_t lane = 0;
    if (rows == 1) {
      for (; lane + kTogether <= num_lanes; lane += kTogether) {
        Block<kType, 1, kTogether>(weights, tile, 0, lane * kLane, outputs, ahead);
      }
    }
    // Blocks of about the same number of rows.
    const std::int64_t num_blocks = (rows + Lanes::kMaxRows - 1) / Lanes::kMaxRows;
    for (; lane < num_lanes; lane += 2) {
      for (std::int64_t i = 0; i < num_blocks; ++i) {
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
  Ahead none;
  if (ahead == nullptr) ahead = &none;
  switch (weights.type) {
    case WeightType::kFloat32:
      return LinearOf<WeightType::kFloat32>(weights, in, num_rows, activation, out, ahead);
    case WeightType::kBfloat16:
      return LinearOf<WeightType::kBfloat16>(weights, in, num_rows, activation, out, ahead);
    case WeightType::kInt8:
      return LinearOf<WeightType::kInt8>(weights, in, num_rows, activation, out, ahead);
    case WeightType::kInt16:
      return LinearOf<WeightType::kInt16>(weights, in, num_rows, activation, out, ahead);
  }
}

}  // namespace
}  // namespace recsys::ops
