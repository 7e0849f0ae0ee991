// Linear layers, in terms of Lanes: included once for each instruction set, after its lanes_*.h.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "ops/kernels/linear_rows.h"

namespace recsys::ops {
namespace {

/// More bytes of weights do not stay in a cache that is near.
constexpr std::int64_t kFarBytes = 1 << 20;
/// Groups of inputs of such weights that all rows of a tile pass before the next ones, so that both
/// are read from the nearest cache. The next weights are fetched into the one behind it meanwhile.
constexpr std::int64_t kChunkGroups = 2 * kGroupsBetween;
/// Groups of inputs between two fetches of weights.
constexpr std::int64_t kFetchGroups = 8;
/// Where rows pass as one block, weights are fetched so many bytes before they are read.
constexpr std::int64_t kFetchBytes = 4096;
/// Runs of kGroupsBetween groups of inputs of which zeros are looked for.
constexpr std::int64_t kMostRuns = 1 << 10;
/// Bytes of a row's sums of a panel.
constexpr std::int64_t kRowSumBytes = kPanelColumns * 4;

/// Groups of inputs, one behind the other.
struct Chunk {
  std::int64_t first = 0, end = 0;
  /// Those of the tile's rows, kRowSumBytes each, between two chunks. Sums have the same bits as
  /// without.
  char* sums = nullptr;
  /// Weights to fetch meanwhile, and their cache lines for every kFetchGroups.
  const char* next = nullptr;
  std::int64_t num_lines = 0;
  /// The runs of a single row's inputs that are zeros: their weights are not read. Null for none.
  const bool* are_zeros = nullptr;
};

/// Finds the runs of a row's inputs that are zeros, as those behind the items of a history. Returns
/// null if there are too many runs.
inline const bool* FindZeros(const Tile& tile, std::int64_t num_groups, bool* are_zeros) {
  if (num_groups > kMostRuns * kGroupsBetween) return nullptr;
  for (std::int64_t first = 0; first < num_groups; first += kGroupsBetween) {
    const std::int64_t end = std::min(first + kGroupsBetween, num_groups);
    std::int32_t bits = 0;
    for (std::int64_t group = first; group < end; ++group) bits |= tile.Group(0, group);
    are_zeros[first / kGroupsBetween] = bits == 0;
  }
  return are_zeros;
}

/// Copies sums of some rows to or from memory. Inlined, so that they stay in registers.
template <bool kIsRead, typename Sums, int kRows, int kLanes>
[[gnu::always_inline]] inline void CopySums(Sums (&sums)[kRows][kLanes], char* memory) {
  static_assert(sizeof(Sums) == kLaneBytes, "sums of 16 columns");
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int lane = 0; lane < kLanes; ++lane) {
      char* const at = memory + r * kRowSumBytes + lane * kLaneBytes;
      if constexpr (kIsRead) {
        std::memcpy(&sums[r][lane], at, sizeof(Sums));
      } else {
        std::memcpy(at, &sums[r][lane], sizeof(Sums));
      }
    }
  }
}

/// Computes kRows rows of kLanes times 16 columns, from `column` on. kIsFar: whether the groups may
/// not be all, and weights are fetched.
template <WeightType kType, bool kIsFar, int kRows, int kLanes>
[[gnu::noinline]] void Block(const Packed& weights, const Tile& tile, std::int64_t row,
                             std::int64_t column, const Chunk& chunk, Outputs outputs,
                             Ahead* ahead) {
  const std::int64_t num_groups = weights.num_groups();
  const std::int64_t first = kIsFar ? chunk.first : 0, last = kIsFar ? chunk.end : num_groups;
  [[maybe_unused]] const char* next = chunk.next;
  const char* at[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) at[lane] = WeightsOf(weights, column + lane * kLane);
  Lanes::Sums<kType> sums[kRows][kLanes];
  if constexpr (kIsFar) {
    if (first > 0) CopySums<true>(sums, chunk.sums + row * kRowSumBytes);
  }
  for (std::int64_t group = first; group < last;) {
    if (!kIsFar || group % kGroupsBetween == 0) FetchSome(ahead);
    if constexpr (kIsFar) {
      for (std::int64_t i = 0; i < chunk.num_lines; ++i, next += kCacheLine) {
        __builtin_prefetch(next, 0, 2);
      }
    }
    const std::int64_t end = std::min(group + (kIsFar ? kFetchGroups : kGroupsBetween), last);
    if constexpr (kRows == 1 && !kIsFar) {
      if (chunk.are_zeros != nullptr && chunk.are_zeros[group / kGroupsBetween]) {
        group = end;
        continue;
      }
    }
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
  if constexpr (kIsFar) {
    if (last < num_groups) {
      return CopySums<false>(sums, chunk.sums + row * kRowSumBytes);
    }
  }
  Finish(weights, tile, row, column, outputs, sums);
}

/// Calls Block for as many rows as `num_rows` says.
template <WeightType kType, bool kIsFar, int kLanes, int kRows = Lanes::kMaxRows>
void BlockOf(std::int64_t num_rows, const Packed& weights, const Tile& tile, std::int64_t row,
             std::int64_t column, const Chunk& chunk, Outputs outputs, Ahead* ahead) {
  if (num_rows == kRows) {
    Block<kType, kIsFar, kRows, kLanes>(weights, tile, row, column, chunk, outputs, ahead);
  } else if constexpr (kRows > 1) {
    BlockOf<kType, kIsFar, kLanes, kRows - 1>(num_rows, weights, tile, row, column, chunk, outputs,
                                              ahead);
  }
}

/// Returns what a block of rows fetches while it computes some groups: its share of the weights
/// that follow. Those of a panel are followed by the next one's.
inline Chunk Fetching(Chunk chunk, const char* panel, std::int64_t block, std::int64_t num_blocks) {
  constexpr std::int64_t kLines = kFetchGroups * kGroupBytes / kCacheLine;
  chunk.num_lines = (kLines + num_blocks - 1) / num_blocks;
  chunk.next = num_blocks == 1
                   ? panel + kFetchBytes
                   : panel + chunk.end * kGroupBytes +
                         block * (kChunkGroups / kFetchGroups) * chunk.num_lines * kCacheLine;
  return chunk;
}

template <WeightType kType, bool kIsFar>
void LinearOf(const Packed& weights, Rows in, std::int64_t num_rows, Activation activation,
              OutRows out, Ahead* ahead) {
  constexpr int kTogether = Lanes::kSinglePanels * 2;
  const std::int64_t num_groups = weights.num_groups();
  const std::int64_t num_lanes = (weights.num_outputs + kLane - 1) / kLane;
  for (std::int64_t first = 0; first < num_rows; first += kTileRows) {
    const std::int64_t rows = std::min(kTileRows, num_rows - first);
    const Tile tile = TileOf<kType>(weights, in, first, rows);
    const Outputs outputs = {{out.data + first * out.stride, out.stride}, activation};
    std::int64_t lane = 0;
    if (rows == 1) {
      Chunk all = {0, num_groups};
      bool are_zeros[kMostRuns];
      // Whole numbers are rounded to some of which 0 is not zero.
      if (kIsFar && !IsWhole(kType)) all.are_zeros = FindZeros(tile, num_groups, are_zeros);
      for (; lane + kTogether <= num_lanes; lane += kTogether) {
        Block<kType, false, 1, kTogether>(weights, tile, 0, lane * kLane, all, outputs, ahead);
      }
    }
    // Blocks of about the same number of rows.
    const std::int64_t num_blocks = (rows + Lanes::kMaxRows - 1) / Lanes::kMaxRows;
    const std::int64_t chunk_groups = kIsFar && num_blocks > 1 ? kChunkGroups : num_groups;
    alignas(64) char sums[kTileRows * kRowSumBytes];
    for (; lane < num_lanes; lane += 2) {
      const char* const panel = WeightsOf(weights, lane * kLane);
      for (std::int64_t group = 0; group < num_groups; group += chunk_groups) {
        Chunk chunk = {group, std::min(group + chunk_groups, num_groups), sums};
        for (std::int64_t i = 0; i < num_blocks; ++i) {
          const std::int64_t row = rows * i / num_blocks;
          const std::int64_t count = rows * (i + 1) / num_blocks - row;
          if constexpr (kIsFar) chunk = Fetching(chunk, panel, i, num_blocks);
          if (lane + 1 < num_lanes) {
            BlockOf<kType, kIsFar, 2>(count, weights, tile, row, lane * kLane, chunk, outputs,
                                      ahead);
          } else {
            BlockOf<kType, kIsFar, 1>(count, weights, tile, row, lane * kLane, chunk, outputs,
                                      ahead);
          }
        }
      }
    }
  }
}

template <WeightType kType>
void LinearOf(const Packed& weights, Rows in, std::int64_t num_rows, Activation activation,
              OutRows out, Ahead* ahead) {
  if (weights.num_panels() * weights.panel_bytes() > kFarBytes) {
    LinearOf<kType, true>(weights, in, num_rows, activation, out, ahead);
  } else {
    LinearOf<kType, false>(weights, in, num_rows, activation, out, ahead);
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
