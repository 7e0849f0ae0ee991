// Products of pairs of vectors, in terms of Lanes: included after linear_kernel.h.

#include <algorithm>
#include <cstdint>

namespace recsys::ops {
namespace {

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

/// Returns vectors as groups of two bfloat16, in the place of floats.
inline const float* ToPairs(const float* vectors, std::int64_t num_vectors, std::int64_t dim) {
  const std::int64_t num_pairs = (dim + 1) / 2;
  char* const pairs = ScratchOf(Scratch::kTile, num_vectors * num_pairs * 4);
  for (std::int64_t i = 0; i < num_vectors; ++i) {
    auto* const to = reinterpret_cast<std::uint16_t*>(pairs) + i * num_pairs * 2;
    Lanes::ToBfloat16(vectors + i * dim, dim, to);
    if (dim % 2 != 0) to[dim] = 0;
  }
  return reinterpret_cast<const float*>(pairs);
}

template <WeightType kType>
void DotOf(const float* vectors, std::int64_t num_vectors, std::int64_t dim, float* out) {
  if constexpr (kType == WeightType::kBfloat16) {
    vectors = ToPairs(vectors, num_vectors, dim);
    dim = (dim + 1) / 2;
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

void Dot(WeightType type, const float* vectors, std::int64_t num_vectors, std::int64_t dim,
         float* out) {
  if (type == WeightType::kBfloat16) {
    DotOf<WeightType::kBfloat16>(vectors, num_vectors, dim, out);
  } else {
    DotOf<WeightType::kFloat32>(vectors, num_vectors, dim, out);
  }
}

}  // namespace
}  // namespace recsys::ops
