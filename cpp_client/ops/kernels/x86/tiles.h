// The tile instructions of AMX, twice: the processor's, and what Intel's manual says of each, in
// plain C++. A tile register holds up to 16 rows of 64 bytes. Both have the same members.

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "ops/packed.h"

namespace recsys::ops {
namespace {

constexpr int kNumTiles = 8;
/// Rows of a tile, and fours of bytes of its rows.
constexpr std::int64_t kTileSide = 16;

/// What LDTILECFG reads: rows and bytes of the rows of each register, none for one without use.
struct alignas(64) TileShapes {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t num_rows[16] = {};

  void Set(int tile, std::int64_t rows, std::int64_t groups) {
    if (rows == 0 || groups == 0) return;
    num_rows[tile] = static_cast<std::uint8_t>(rows);
    row_bytes[tile] = static_cast<std::uint16_t>(4 * groups);
  }
};
static_assert(sizeof(TileShapes) == 64, "the processor reads 64 bytes");

/// The number of a register. It converts to an int.
template <int kNumber>
using Register = std::integral_constant<int, kNumber>;

/// The processor's. Written as assembly, because GCC's intrinsics take no template arguments.
struct AmxTiles {
  void Configure(const TileShapes& shapes) {
    __asm__ volatile("ldtilecfg %0" : : "m"(shapes) : "memory");
  }
  /// Ends the use of the registers. Until then, the system saves them when it switches threads.
  void Release() { __asm__ volatile("tilerelease" : : : "memory"); }
  template <int kTile>
  void Zero(Register<kTile> /*tile*/) {
    __asm__ volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  template <int kTile>
  void Load(Register<kTile> /*tile*/, const char* from, std::int64_t stride) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2"
                     :
                     : "r"(from), "r"(stride), "i"(kTile)
                     : "memory");
  }
  template <int kTile>
  void Store(Register<kTile> /*tile*/, char* to, std::int64_t stride) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)"
                     :
                     : "r"(to), "r"(stride), "i"(kTile)
                     : "memory");
  }
  template <WeightType kType, int kSum, int kA, int kB>
  void Dot(Register<kSum> /*sum*/, Register<kA> /*a*/, Register<kB> /*b*/) {
    if constexpr (kType == WeightType::kBfloat16) {
      __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kA), "i"(kB));
    } else {
      __asm__ volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kA), "i"(kB));
    }
  }
};

/// The same without such a processor. Traps where it would.
class PlainTiles {
 public:
  /// Takes shapes, and makes all registers zeros.
  void Configure(const TileShapes& shapes) {
    Check(shapes.palette == 1 && shapes.start_row == 0);
    for (int tile = 0; tile < 16; ++tile) {
      const int rows = shapes.num_rows[tile], bytes = shapes.row_bytes[tile];
      Check(tile < kNumTiles ? rows <= kTileSide && bytes <= 4 * kTileSide
                             : rows == 0 && bytes == 0);
    }
    shapes_ = shapes;
    std::memset(tiles_, 0, sizeof(tiles_));
  }
  void Release() { shapes_ = {}; }
  void Zero(int tile) {
    CheckUsed(tile);
    std::memset(tiles_[tile], 0, sizeof(tiles_[tile]));
  }
  /// Reads the rows of a register, which lie `stride` bytes apart; zeros behind them.
  void Load(int tile, const char* from, std::int64_t stride) {
    Zero(tile);
    for (int row = 0; row < Rows(tile); ++row) {
      std::memcpy(tiles_[tile][row], from + row * stride, shapes_.row_bytes[tile]);
    }
  }
  void Store(int tile, char* to, std::int64_t stride) {
    CheckUsed(tile);
    for (int row = 0; row < Rows(tile); ++row) {
      std::memcpy(to + row * stride, tiles_[tile][row], shapes_.row_bytes[tile]);
    }
  }
  /// Adds products: number (m, n) of `sum` gets those of row m of `a` and column n of `b`, whose
  /// rows are groups. Of bfloat16, TDPBF16PS; of unsigned bytes in `a` and signed ones in `b`,
  /// TDPBUSD.
  template <WeightType kType>
  void Dot(int sum, int a, int b) {
    for (const int tile : {sum, a, b}) CheckUsed(tile);
    Check(sum != a && a != b && b != sum);
    Check(Rows(sum) == Rows(a) && Groups(a) == Rows(b) && Groups(sum) == Groups(b));
    for (int m = 0; m < Rows(sum); ++m) {
      if constexpr (kType == WeightType::kBfloat16) {
        DotFloats(tiles_[a][m], tiles_[b], Groups(a), Groups(sum), tiles_[sum][m]);
      } else {
        DotBytes(tiles_[a][m], tiles_[b], Groups(a), Groups(sum), tiles_[sum][m]);
      }
    }
  }

 private:
  using Row = std::uint32_t[kTileSide];

  static void Check(bool is_right) {
    if (!is_right) __builtin_trap();
  }
  void CheckUsed(int tile) const { Check(tile < kNumTiles && Rows(tile) > 0 && Groups(tile) > 0); }
  int Rows(int tile) const { return shapes_.num_rows[tile]; }
  int Groups(int tile) const { return shapes_.row_bytes[tile] / 4; }

  /// A float of these bits. Denormals are zeros.
  static float Number(std::uint32_t bits) {
    if ((bits & 0x7f800000U) == 0) bits &= 0x80000000U;
    float value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }
  static float Flushed(float value) { return Number(Bits(value)); }
  static std::uint32_t Bits(float value) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    return bits;
  }

  /// The even and the odd ones of the numbers are summed apart, by instructions that multiply and
  /// add with one rounding; then both sums together are added.
  static void DotFloats(const Row& a, const Row* b, int num_groups, int num_columns, Row& sums) {
    float even[kTileSide] = {}, odd[kTileSide] = {};
    for (int k = 0; k < num_groups; ++k) {
      const float low = Number(a[k] << 16), high = Number(a[k] & 0xffff0000U);
      for (int n = 0; n < num_columns; ++n) {
        even[n] = Flushed(__builtin_fmaf(low, Number(b[k][n] << 16), even[n]));
        odd[n] = Flushed(__builtin_fmaf(high, Number(b[k][n] & 0xffff0000U), odd[n]));
      }
    }
    for (int n = 0; n < num_columns; ++n) {
      sums[n] = Bits(Flushed(Number(sums[n]) + Flushed(even[n] + odd[n])));
    }
  }

  static void DotBytes(const Row& a, const Row* b, int num_groups, int num_columns, Row& sums) {
    for (int k = 0; k < num_groups; ++k) {
      std::uint8_t in[4];
      std::memcpy(in, &a[k], sizeof(in));
      for (int n = 0; n < num_columns; ++n) {
        std::int8_t by[4];
        std::memcpy(by, &b[k][n], sizeof(by));
        std::int32_t sum = 0;
        for (int i = 0; i < 4; ++i) sum += in[i] * by[i];
        // Sums that are too large begin again at the smallest number.
        sums[n] += static_cast<std::uint32_t>(sum);
      }
    }
  }

  TileShapes shapes_;
  Row tiles_[kNumTiles][kTileSide] = {};
};

}  // namespace
}  // namespace recsys::ops
