// Linear layers in bfloat16 and int8, in terms of tiles: included after the lanes, which do what
// comes before and after the products.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "ops/kernels/linear_rows.h"
#include "ops/kernels/x86/tiles.h"

namespace recsys::ops {
namespace {

/// Registers of sums: row tiles, each with its lanes. Then those of inputs and weights, which have
/// 16 groups, and narrower ones of the last groups.
constexpr int kMostSums = 4;
constexpr Register<4> kInTile;
constexpr Register<5> kWeightTile;
constexpr Register<6> kLastInTile;
constexpr Register<7> kLastWeightTile;
/// Rows whose sums fit into the registers.
constexpr std::int64_t kBlockRows = 2 * kTileSide;

/// Rows of inputs, at most kBlockRows. Each of their tiles has `tile_rows`: one may be too many at
/// the end, which is computed but not written.
struct BlockOfRows {
  Tile tile;
  std::int64_t num_rows = 0;
  std::int64_t tile_rows = 0;
};

inline TileShapes ShapesOf(std::int64_t tile_rows, std::int64_t num_groups) {
  TileShapes shapes;
  for (int sums = 0; sums < kMostSums; ++sums) shapes.Set(sums, tile_rows, kLane);
  if (num_groups >= kTileSide) {
    shapes.Set(kInTile, tile_rows, kTileSide);
    shapes.Set(kWeightTile, kTileSide, kLane);
  }
  const std::int64_t num_last = num_groups % kTileSide;
  shapes.Set(kLastInTile, tile_rows, num_last);
  shapes.Set(kLastWeightTile, num_last, kLane);
  return shapes;
}

/// Calls `use` with the first kCount registers, or with the numbers that they stand for.
template <int kCount, typename Use>
void ForEach(const Use& use) {
  if constexpr (kCount > 0) {
    ForEach<kCount - 1>(use);
    use(Register<kCount - 1>());
  }
}

/// Computes the rows of a block, kLanes times 16 columns, from `column` on.
template <typename Tiles, WeightType kType, int kRowTiles, int kLanes>
void TileBlock(Tiles* tiles, const Packed& weights, const BlockOfRows& rows, std::int64_t column,
               Outputs outputs, Ahead* ahead) {
  static_assert(kRowTiles * kLanes <= kMostSums, "registers");
  // About as often as NumFetches says.
  constexpr std::int64_t kBetween = kRowTiles == 1 ? kGroupsBetween : kTileSide;
  constexpr std::int64_t kSumBytes = kLanes * kLaneBytes;
  const Tile& tile = rows.tile;
  const char* at[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) at[lane] = WeightsOf(weights, column + lane * kLane);
  ForEach<kRowTiles * kLanes>([&](auto sum) { tiles->Zero(sum); });
  const auto add = [&](auto in_tile, auto weight_tile, std::int64_t group) {
    ForEach<kRowTiles>([&](auto row_tile) {
      const std::int64_t row = row_tile * rows.tile_rows;
      tiles->Load(in_tile, tile.data + row * tile.stride_bytes + 4 * group, tile.stride_bytes);
      ForEach<kLanes>([&](auto lane) {
        tiles->Load(weight_tile, at[lane] + group * kGroupBytes, kGroupBytes);
        constexpr int kSum = decltype(row_tile)::value * kLanes + decltype(lane)::value;
        tiles->template Dot<kType>(Register<kSum>(), in_tile, weight_tile);
      });
    });
  };
  const std::int64_t num_groups = weights.num_groups();
  std::int64_t group = 0;
  for (; group + kTileSide <= num_groups; group += kTileSide) {
    if (group % kBetween == 0) FetchSome(ahead);
    add(kInTile, kWeightTile, group);
  }
  if (group < num_groups) {
    if (group % kBetween == 0) FetchSome(ahead);
    add(kLastInTile, kLastWeightTile, group);
  }
  alignas(64) char sums[kMostSums * kTileSide * kLaneBytes];
  ForEach<kRowTiles * kLanes>([&](auto sum) {
    const std::int64_t row = sum / kLanes * rows.tile_rows;
    tiles->Store(sum, sums + row * kSumBytes + sum % kLanes * kLaneBytes, kSumBytes);
  });
  for (std::int64_t row = 0; row < rows.num_rows; ++row) {
    Lanes::Sums<kType> of_row[1][kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
      std::memcpy(&of_row[0][lane].sums, sums + row * kSumBytes + lane * kLaneBytes, kLaneBytes);
    }
    Finish(weights, tile, row, column, outputs, of_row);
  }
}

/// Computes all columns of a block from `column` on, kLanes times 16 at a time as long as there are
/// so many.
template <typename Tiles, WeightType kType, int kRowTiles, int kLanes>
void TileColumns(Tiles* tiles, const Packed& weights, const BlockOfRows& rows, std::int64_t column,
                 Outputs outputs, Ahead* ahead) {
  for (; weights.num_outputs - column > (kLanes - 1) * kLane; column += kLanes * kLane) {
    TileBlock<Tiles, kType, kRowTiles, kLanes>(tiles, weights, rows, column, outputs, ahead);
  }
  if constexpr (kLanes > 1) {
    TileColumns<Tiles, kType, kRowTiles, kLanes - 1>(tiles, weights, rows, column, outputs, ahead);
  }
}

template <typename Tiles, WeightType kType>
void TileLinearOf(const Packed& weights, Rows in, std::int64_t num_rows, Activation activation,
                  OutRows out, Ahead* ahead) {
  static_assert(kBlockRows <= kTileRows, "rows that are prepared at a time");
  Tiles tiles;
  for (std::int64_t first = 0; first < num_rows; first += kBlockRows) {
    const std::int64_t count = std::min(kBlockRows, num_rows - first);
    const Outputs outputs = {{out.data + first * out.stride, out.stride}, activation};
    const bool is_one = count <= kTileSide;
    const BlockOfRows rows = {TileOf<kType>(weights, in, first, count), count,
                              is_one ? count : (count + 1) / 2};
    tiles.Configure(ShapesOf(rows.tile_rows, weights.num_groups()));
    if (is_one) {
      TileColumns<Tiles, kType, 1, 4>(&tiles, weights, rows, 0, outputs, ahead);
    } else {
      TileColumns<Tiles, kType, 2, 2>(&tiles, weights, rows, 0, outputs, ahead);
    }
  }
  // Not a destructor: code that runs when something is thrown would leave a weak symbol behind.
  tiles.Release();
}

/// Products of bytes that tiles are not faster at than AVX-512, which has the same bits: rows times
/// groups, as measured on Sapphire Rapids. Those of bfloat16 have other bits.
constexpr std::int64_t kFewProducts = 160;

/// Layers in float32 and int16 are those of AVX-512.
template <typename Tiles>
void TileLinear(const Packed& weights, Rows in, std::int64_t num_rows, Activation activation,
                OutRows out, Ahead* ahead) {
  Ahead none;
  if (ahead == nullptr) ahead = &none;
  switch (weights.type) {
    case WeightType::kFloat32:
    case WeightType::kInt16:
      return Avx512Kernels().linear(weights, in, num_rows, activation, out, ahead);
    case WeightType::kBfloat16:
      return TileLinearOf<Tiles, WeightType::kBfloat16>(weights, in, num_rows, activation, out,
                                                        ahead);
    case WeightType::kInt8:
      if (num_rows == 1 || num_rows * weights.num_groups() <= kFewProducts) {
        return Avx512Kernels().linear(weights, in, num_rows, activation, out, ahead);
      }
      return TileLinearOf<Tiles, WeightType::kInt8>(weights, in, num_rows, activation, out, ahead);
  }
}

}  // namespace
}  // namespace recsys::ops
