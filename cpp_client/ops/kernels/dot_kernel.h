// Products of pairs of vectors, in terms of Lanes: included after linear_kernel.h.

#include <algorithm>
#include <cstdint>

namespace recsys::ops {
namespace {

/// Products of kRows vectors with 16 others, which are given as columns.
template <int kRows>
void Products(const float* vectors, std::int64_t dim, const float* columns, std::int64_t stride,
              float* out) {
  const Tile tile{reinterpret_cast<const char*>(vectors), dim * 4, nullptr};
  Lanes::Sums<WeightType::kFloat32> sums[kRows];
  for (std::int64_t k = 0; k < dim; ++k) {
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      sums[r].Add(tile.Group(r, k), reinterpret_cast<const char*>(columns + k * stride));
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) Lanes::Store(out + r * stride, sums[r].AsFloats());
}

template <int kRows = Lanes::kMaxRows>
void ProductsOf(std::int64_t num_rows, const float* vectors, std::int64_t dim, const float* columns,
                std::int64_t stride, float* out) {
  if (num_rows == kRows) {
    Products<kRows>(vectors, dim, columns, stride, out);
  } else if constexpr (kRows > 1) {
    ProductsOf<kRows - 1>(num_rows, vectors, dim, columns, stride, out);
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

void Dot(const float* vectors, std::int64_t num_vectors, std::int64_t dim, float* out) {
  const std::int64_t stride = (num_vectors + kLane - 1) / kLane * kLane;
  const auto room = [stride](Scratch use, std::int64_t rows) {
    return reinterpret_cast<float*>(ScratchOf(use, rows * stride * std::int64_t{sizeof(float)}));
  };
  float* const columns = room(Scratch::kColumns, dim);
  float* const products = room(Scratch::kProducts, num_vectors);
  Transpose(vectors, num_vectors, dim, columns, stride);
  for (std::int64_t lane = 0; lane < stride; lane += kLane) {
    // Those before the last column of the lane.
    const std::int64_t count = std::min(num_vectors - 1, lane + kLane - 1);
    const std::int64_t num_blocks = (count + Lanes::kMaxRows - 1) / Lanes::kMaxRows;
    for (std::int64_t i = 0; i < num_blocks; ++i) {
      const std::int64_t first = count * i / num_blocks;
      ProductsOf<>(count * (i + 1) / num_blocks - first, vectors + first * dim, dim, columns + lane,
                   stride, products + first * stride + lane);
    }
  }
  for (std::int64_t i = 0; i + 1 < num_vectors; ++i) {
    out = std::copy(products + i * stride + i + 1, products + i * stride + num_vectors, out);
  }
}

}  // namespace
}  // namespace recsys::ops
