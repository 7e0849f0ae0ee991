// Products of pairs of vectors, in terms of Lanes: included after linear_kernel.h.

#include <algorithm>
#include <cstdint>

namespace recsys::ops {
namespace {

/// From so many rows on, one lane for each is faster than one row after the other.
constexpr std::int64_t kLeastLanes = 12;
/// More numbers and products of 16 rows would leave the cache between two uses.
constexpr std::int64_t kMostNumbersOfLanes = 1 << 13;

template <WeightType kType>
constexpr std::int64_t NumGroups(std::int64_t dim) {
  return kType == WeightType::kBfloat16 ? (dim + 1) / 2 : dim;
}

/// Products of kRows vectors of so many groups with 16 others, which are given as columns.
template <WeightType kType, int kRows>
void Products(const float* vectors, std::int64_t num_groups, const float* columns,
              std::int64_t stride, float* out) {
  const Tile tile{reinterpret_cast<const char*>(vectors), num_groups * 4, nullptr};
  Lanes::Sums<kType> sums[kRows];
  for (std::int64_t k = 0; k < num_groups; ++k) {
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      sums[r].Add(tile.Group(r, k), reinterpret_cast<const char*>(columns + k * stride));
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) Lanes::Store(out + r * stride, sums[r].AsFloats());
}

template <WeightType kType, int kRows = Lanes::kMaxRows>
void ProductsOf(std::int64_t num_rows, const float* vectors, std::int64_t num_groups,
                const float* columns, std::int64_t stride, float* out) {
  if (num_rows == kRows) {
    Products<kType, kRows>(vectors, num_groups, columns, stride, out);
  } else if constexpr (kRows > 1) {
    ProductsOf<kType, kRows - 1>(num_rows, vectors, num_groups, columns, stride, out);
  }
}

/// Writes vectors [count, dim] as columns [dim, stride].
inline void Transpose(const float* vectors, std::int64_t count, std::int64_t dim, float* columns,
                      std::int64_t stride) {
  for (std::int64_t first = 0; first < count; first += kLane) {
    const std::int64_t some = std::min(kLane, count - first);
    std::int64_t k = 0;
    for (; k + kLane <= dim; k += kLane) {
      Lanes::Transpose(vectors + first * dim + k, dim, some, columns + k * stride + first, stride);
    }
    for (; k < dim; ++k) {
      float* const to = columns + k * stride + first;
      for (std::int64_t i = 0; i < kLane; ++i) {
        to[i] = i < some ? vectors[(first + i) * dim + k] : 0;
      }
    }
  }
}

/// Copies the numbers above the diagonal, row by row.
inline void CopyAbove(const float* products, std::int64_t num_vectors, std::int64_t stride,
                      float* out) {
  const float* const end = out + num_vectors * (num_vectors - 1) / 2;
  for (std::int64_t i = 0; i + 1 < num_vectors; ++i) {
    const float* const from = products + i * (stride + 1) + 1;
    const std::int64_t count = num_vectors - i - 1;
    std::int64_t k = 0;
    // What is too much is overwritten by the next row.
    for (; k < count && end - (out + k) >= kLane; k += kLane) {
      Lanes::Store(out + k, Lanes::Load(from + k));
    }
    for (; k < count; ++k) out[k] = from[k];
    out += count;
  }
}

/// Writes vectors as groups of two bfloat16.
inline void WritePairs(const float* vectors, std::int64_t num_vectors, std::int64_t dim,
                       std::uint16_t* pairs) {
  const std::int64_t num_pairs = (dim + 1) / 2;
  for (std::int64_t i = 0; i < num_vectors; ++i) {
    std::uint16_t* const to = pairs + i * num_pairs * 2;
    Lanes::ToBfloat16(vectors + i * dim, dim, to);
    if (dim % 2 != 0) to[dim] = 0;
  }
}

/// One row: products of vectors with 16 others at a time.
template <WeightType kType>
void DotOfRow(const float* vectors, VectorsShape shape, float* out) {
  const std::int64_t num_vectors = shape.num_vectors, dim = NumGroups<kType>(shape.dim);
  if constexpr (kType == WeightType::kBfloat16) {
    char* const pairs = ScratchOf(Scratch::kTile, num_vectors * dim * 4);
    WritePairs(vectors, num_vectors, shape.dim, reinterpret_cast<std::uint16_t*>(pairs));
    vectors = reinterpret_cast<const float*>(pairs);
  }
  const std::int64_t stride = (num_vectors + kLane - 1) / kLane * kLane;
  const auto room = [stride](Scratch use, std::int64_t rows) {
    return reinterpret_cast<float*>(ScratchOf(use, rows * stride * std::int64_t{sizeof(float)}));
  };
  float* const columns = room(Scratch::kColumns, dim);
  // Up to 16 numbers behind the last one are read.
  float* const products = room(Scratch::kProducts, num_vectors + 1);
  Transpose(vectors, num_vectors, dim, columns, stride);
  for (std::int64_t lane = 0; lane < stride; lane += kLane) {
    // Those before the last column of the lane.
    const std::int64_t count = std::min(num_vectors - 1, lane + kLane - 1);
    const std::int64_t num_blocks = (count + Lanes::kMaxRows - 1) / Lanes::kMaxRows;
    for (std::int64_t i = 0; i < num_blocks; ++i) {
      const std::int64_t first = count * i / num_blocks;
      ProductsOf<kType>(count * (i + 1) / num_blocks - first, vectors + first * dim, dim,
                        columns + lane, stride, products + first * stride + lane);
    }
  }
  CopyAbove(products, num_vectors, stride, out);
}

/// Multiplies the vectors `i` to `i + kFirst` of 16 rows with those from `j` on, summed over
/// groups; pairs of them where both begin at the same vector.
template <WeightType kType, int kFirst, int kSecond, bool kIsPairs>
void ProductsOfRows(const float* columns, std::int64_t num_groups, std::int64_t num_vectors,
                    std::int64_t i, std::int64_t j, float* products) {
  const float* const first = columns + i * num_groups * kLane;
  const float* const second = columns + j * num_groups * kLane;
  Lanes::Sums<kType> sums[kFirst][kSecond];
  for (std::int64_t k = 0; k < num_groups; ++k) {
#pragma GCC unroll 8
    for (int a = 0; a < kFirst; ++a) {
#pragma GCC unroll 8
      for (int b = kIsPairs ? a + 1 : 0; b < kSecond; ++b) {
        sums[a][b].AddLanes(first + (a * num_groups + k) * kLane,
                            second + (b * num_groups + k) * kLane);
      }
    }
  }
#pragma GCC unroll 8
  for (int a = 0; a < kFirst; ++a) {
    const std::int64_t before = (i + a) * (2 * num_vectors - (i + a) - 1) / 2 - (i + a) - 1;
#pragma GCC unroll 8
    for (int b = kIsPairs ? a + 1 : 0; b < kSecond; ++b) {
      Lanes::Store(products + (before + j + b) * kLane, sums[a][b].AsFloats());
    }
  }
}

/// Calls ProductsOfRows for as many vectors as there are.
template <WeightType kType, int kFirst = Lanes::kMaxVectors, int kSecond = Lanes::kMaxVectors>
void ProductsOfRowsOf(std::int64_t num_first, std::int64_t num_second, const float* columns,
                      std::int64_t num_groups, std::int64_t num_vectors, std::int64_t i,
                      std::int64_t j, float* products) {
  if (num_first < kFirst) {
    if constexpr (kFirst > 1) {
      ProductsOfRowsOf<kType, kFirst - 1, kSecond>(num_first, num_second, columns, num_groups,
                                                   num_vectors, i, j, products);
    }
  } else if (num_second < kSecond) {
    if constexpr (kSecond > 1) {
      ProductsOfRowsOf<kType, kFirst, kSecond - 1>(num_first, num_second, columns, num_groups,
                                                   num_vectors, i, j, products);
    }
  } else if (i == j) {
    ProductsOfRows<kType, kFirst, kSecond, true>(columns, num_groups, num_vectors, i, j, products);
  } else {
    ProductsOfRows<kType, kFirst, kSecond, false>(columns, num_groups, num_vectors, i, j, products);
  }
}

/// Returns memory for so many numbers of 16 rows.
inline float* RoomOfLanes(Scratch use, std::int64_t count) {
  return reinterpret_cast<float*>(ScratchOf(use, count * kLaneBytes));
}

/// Writes the groups of up to 16 rows of vectors as columns of 16. Vectors of whole groups may as
/// well be one.
template <WeightType kType>
void ToLanes(Rows in, std::int64_t num_rows, VectorsShape shape, float* columns) {
  constexpr bool kIsPairs = kType == WeightType::kBfloat16;
  constexpr std::int64_t kNumbers = kIsPairs ? 2 : 1;
  const std::int64_t num_groups = NumGroups<kType>(shape.dim);
  for (std::int64_t i = 0; i < shape.num_vectors; ++i, columns += num_groups * kLane) {
    const float* const from = in.data + i * shape.dim;
    std::int64_t group = 0;
    for (; (group + kLane) * kNumbers <= shape.dim; group += kLane) {
      if constexpr (kIsPairs) {
        Lanes::TransposePairs(from + group * 2, in.stride, num_rows, columns + group * kLane,
                              kLane);
      } else {
        Lanes::Transpose(from + group, in.stride, num_rows, columns + group * kLane, kLane);
      }
    }
    for (; group < num_groups; ++group) {
      for (std::int64_t row = 0; row < kLane; ++row) {
        float* const to = columns + group * kLane + row;
        const float* const at = from + row * in.stride + group * kNumbers;
        if (row >= num_rows) {
          *to = 0;
        } else if constexpr (kIsPairs) {
          const bool is_whole = group * 2 + 1 < shape.dim;
          const std::uint16_t pair[2] = {ToBfloat16(at[0]),
                                         is_whole ? ToBfloat16(at[1]) : std::uint16_t{0}};
          std::memcpy(to, pair, sizeof(pair));
        } else {
          *to = *at;
        }
      }
    }
  }
}

/// Writes columns of up to 16 rows as rows. There is room for 16 columns more.
inline void OfLanes(float* columns, std::int64_t num_columns, std::int64_t num_rows, OutRows out) {
  float* const rest = columns + num_columns * kLane;
  for (std::int64_t k = 0; k < num_columns; k += kLane) {
    const std::int64_t count = std::min(kLane, num_columns - k);
    if (count == kLane && num_rows == kLane) {
      Lanes::Transpose(columns + k * kLane, kLane, kLane, out.data + k, out.stride);
      continue;
    }
    Lanes::Transpose(columns + k * kLane, kLane, count, rest, kLane);
    for (std::int64_t row = 0; row < num_rows; ++row) {
      std::copy_n(rest + row * kLane, count, out.data + row * out.stride + k);
    }
  }
}

/// Up to 16 rows, each in a lane of its own: no product is computed twice.
template <WeightType kType>
void DotOfRows(Rows in, std::int64_t num_rows, VectorsShape shape, OutRows out) {
  const std::int64_t num_vectors = shape.num_vectors, num_groups = NumGroups<kType>(shape.dim);
  float* const columns = RoomOfLanes(Scratch::kColumns, num_vectors * num_groups);
  const bool is_one = kType != WeightType::kBfloat16 || shape.dim % 2 == 0;
  ToLanes<kType>(in, num_rows, is_one ? VectorsShape{1, num_vectors * shape.dim} : shape, columns);
  const std::int64_t num_products = num_vectors * (num_vectors - 1) / 2;
  float* const products = RoomOfLanes(Scratch::kProducts, num_products + kLane);
  constexpr std::int64_t kMost = Lanes::kMaxVectors;
  for (std::int64_t i = 0; i < num_vectors; i += kMost) {
    for (std::int64_t j = i; j < num_vectors; j += kMost) {
      ProductsOfRowsOf<kType>(std::min(kMost, num_vectors - i), std::min(kMost, num_vectors - j),
                              columns, num_groups, num_vectors, i, j, products);
    }
  }
  OfLanes(products, num_products, num_rows, out);
}

/// Both ways add in the same order: a row's bits do not depend on which one it goes.
template <WeightType kType>
void DotOf(Rows in, std::int64_t num_rows, VectorsShape shape, OutRows out) {
  const std::int64_t num_numbers = shape.num_vectors * NumGroups<kType>(shape.dim) +
                                   shape.num_vectors * (shape.num_vectors - 1) / 2;
  const bool fits = num_numbers <= kMostNumbersOfLanes;
  for (std::int64_t first = 0; first < num_rows; first += kLane) {
    const std::int64_t count = std::min(kLane, num_rows - first);
    const float* const from = in.data + first * in.stride;
    float* const to = out.data + first * out.stride;
    if (fits && count >= kLeastLanes) {
      DotOfRows<kType>({from, in.stride}, count, shape, {to, out.stride});
      continue;
    }
    for (std::int64_t row = 0; row < count; ++row) {
      DotOfRow<kType>(from + row * in.stride, shape, to + row * out.stride);
    }
  }
}

void Dot(WeightType type, Rows in, std::int64_t num_rows, VectorsShape shape, OutRows out) {
  if (type == WeightType::kBfloat16) {
    DotOf<WeightType::kBfloat16>(in, num_rows, shape, out);
  } else {
    DotOf<WeightType::kFloat32>(in, num_rows, shape, out);
  }
}

}  // namespace
}  // namespace recsys::ops
