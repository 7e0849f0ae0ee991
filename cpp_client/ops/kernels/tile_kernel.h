// Linear layers in bfloat16 and int8, in terms of tiles: included after the lanes, which do what
// comes before and after the products.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "ops/kernels/linear_rows.h"
#include "ops/kernels/tiles.h"

namespace recsys::ops {
namespace {

/// Registers of sums: row tiles, each with its lanes. Then those of inputs and weights, which have
/// 16 groups, and narrower ones of the last groups.
constexpr int kMostSums = 4;
constexpr int kInTile = 4, kWeightTile = 5, kLastInTile = 6, kLastWeightTile = 7;
/// Rows whose sums fit into the registers.
constexpr std::int64_t kBlockRows = 2 * kTileSide;

/// Rows, of which each of kRowTiles tiles has `tile_rows`: at the end one may be too many, which is
/// computed but not written.
struct BlockOfRows {
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

/// The sums of kRowTiles times kLanes tiles, and what is done with each of them.
template <typename Tiles, WeightType kType, int kRowTiles, int kLanes>
class TileSums {
  static_assert(kRowTiles * kLanes <= kMostSums, "registers");
  using EachLane = std::make_integer_sequence<int, kLanes>;
  using EachSum = std::make_integer_sequence<int, kRowTiles * kLanes>;

 public:
  /// Bytes of a row of sums.
  static constexpr std::int64_t kStride = kLanes * kLaneBytes;

  static void Zero(Tiles* tiles) { ZeroEach(tiles, EachSum()); }

  /// Adds the products of as many groups as the registers kIn and kBy have.
  template <int kIn, int kBy>
  static void Add(Tiles* tiles, const char* in, std::int64_t stride, std::int64_t tile_rows,
                  const char* const* by) {
    AddRow<kIn, kBy, 0>(tiles, in, stride, by, EachLane());
    if constexpr (kRowTiles == 2) {
      AddRow<kIn, kBy, kLanes>(tiles, in + tile_rows * stride, stride, by, EachLane());
    }
  }

  static void Store(Tiles* tiles, std::int64_t tile_rows, char* to) {
    StoreEach(tiles, tile_rows, to, EachSum());
  }

 private:
  template <int... kSum>
  static void ZeroEach(Tiles* tiles, std::integer_sequence<int, kSum...> /*sums*/) {
    (tiles->template Zero<kSum>(), ...);
  }
  template <int kIn, int kBy, int kFirst, int... kOfLane>
  static void AddRow(Tiles* tiles, const char* in, std::int64_t stride, const char* const* by,
                     std::integer_sequence<int, kOfLane...> /*lanes*/) {
    tiles->template Load<kIn>(in, stride);
    ((tiles->template Load<kBy>(by[kOfLane], kGroupBytes),
      tiles->template Dot<kType, kFirst + kOfLane, kIn, kBy>()),
     ...);
  }
  template <int... kSum>
  static void StoreEach(Tiles* tiles, std::int64_t tile_rows, char* to,
                        std::integer_sequence<int, kSum...> /*sums*/) {
    (tiles->template Store<kSum>(
         to + kSum / kLanes * tile_rows * kStride + kSum % kLanes * kLaneBytes, kStride),
     ...);
  }
};

/// Computes a block of rows of kLanes times 16 columns, from `column` on.
template <typename Tiles, WeightType kType, int kRowTiles, int kLanes>
void TileBlock(Tiles* tiles, const Packed& weights, const Tile& tile, BlockOfRows rows,
               std::int64_t column, Outputs outputs, Ahead* ahead) {
  using Sums = TileSums<Tiles, kType, kRowTiles, kLanes>;
  // About as often as NumFetches says.
  constexpr std::int64_t kBetween = kRowTiles == 1 ? kGroupsBetween : kTileSide;
  const std::int64_t num_groups = weights.num_groups();
  const char* at[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) at[lane] = WeightsOf(weights, column + lane * kLane);
  Sums::Zero(tiles);
  for (std::int64_t group = 0; group < num_groups; group += kTileSide) {
    if (group % kBetween == 0) FetchSome(ahead);
    const char* const in = tile.data + 4 * group;
    if (num_groups - group >= kTileSide) {
      Sums::template Add<kInTile, kWeightTile>(tiles, in, tile.stride_bytes, rows.tile_rows, at);
      for (const char*& of_lane : at) of_lane += kTileSide * kGroupBytes;
    } else {
      Sums::template Add<kLastInTile, kLastWeightTile>(tiles, in, tile.stride_bytes, rows.tile_rows,
                                                       at);
    }
  }
  alignas(64) char all[kMostSums * kTileSide * kLaneBytes];
  Sums::Store(tiles, rows.tile_rows, all);
  for (std::int64_t row = 0; row < rows.num_rows; ++row) {
    Lanes::Sums<kType> sums[1][kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
      std::memcpy(&sums[0][lane].sums, all + row * Sums::kStride + lane * kLaneBytes, kLaneBytes);
    }
    Finish(weights, tile, row, column, outputs, sums);
  }
}

/// Computes all columns of a block of rows, kLanes times 16 at a time as long as there are so many.
template <typename Tiles, WeightType kType, int kRowTiles, int kLanes>
void TileColumns(Tiles* tiles, const Packed& weights, const Tile& tile, BlockOfRows rows,
                 std::int64_t column, Outputs outputs, Ahead* ahead) {
  for (; weights.num_outputs - column > (kLanes - 1) * kLane; column += kLanes * kLane) {
    TileBlock<Tiles, kType, kRowTiles, kLanes>(tiles, weights, tile, rows, column, outputs, ahead);
  }
  if constexpr (kLanes > 1) {
    TileColumns<Tiles, kType, kRowTiles, kLanes - 1>(tiles, weights, tile, rows, column, outputs,
                                                     ahead);
  }
}

template <typename Tiles, WeightType kType>
void TileLinearOf(const Packed& weights, Rows in, std::int64_t num_rows, Activation activation,
                  OutRows out, Ahead* ahead) {
  static_assert(kBlockRows <= kTileRows, "rows that are prepared at a time");
  Tiles tiles;
  for (std::int64_t first = 0; first < num_rows; first += kBlockRows) {
    const std::int64_t count = std::min(kBlockRows, num_rows - first);
    const Tile tile = TileOf<kType>(weights, in, first, count);
    const Outputs outputs = {{out.data + first * out.stride, out.stride}, activation};
    const bool is_one = count <= kTileSide;
    const BlockOfRows rows = {count, is_one ? count : (count + 1) / 2};
    tiles.Configure(ShapesOf(rows.tile_rows, weights.num_groups()));
    if (is_one) {
      TileColumns<Tiles, kType, 1, 4>(&tiles, weights, tile, rows, 0, outputs, ahead);
    } else {
      TileColumns<Tiles, kType, 2, 2>(&tiles, weights, tile, rows, 0, outputs, ahead);
    }
  }
  // Not a destructor: code that runs when something is thrown would leave a weak symbol behind.
  tiles.Release();
}

/// float32 layers are those of AVX-512.
template <typename Tiles>
void TileLinear(const Packed& weights, Rows in, std::int64_t num_rows, Activation activation,
                OutRows out, Ahead* ahead) {
  Ahead none;
  if (ahead == nullptr) ahead = &none;
  switch (weights.type) {
    case WeightType::kFloat32:
      return Avx512Kernels().linear(weights, in, num_rows, activation, out, ahead);
    case WeightType::kBfloat16:
      return TileLinearOf<Tiles, WeightType::kBfloat16>(weights, in, num_rows, activation, out,
                                                        ahead);
    case WeightType::kInt8:
      return TileLinearOf<Tiles, WeightType::kInt8>(weights, in, num_rows, activation, out, ahead);
  }
}

}  // namespace
}  // namespace recsys::ops
