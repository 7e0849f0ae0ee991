#ifndef RECSYS_OPS_KERNELS_KERNELS_H_
#define RECSYS_OPS_KERNELS_KERNELS_H_

#include <cstdint>

#include "ops/isa.h"
#include "ops/packed.h"

namespace recsys::ops {

enum class Activation : std::int32_t { kNone = 0, kRelu = 1, kSigmoid = 2 };

/// Floats in rows: row r begins at data + r * stride.
struct Rows {
  const float* data = nullptr;
  std::int64_t stride = 0;
};
struct OutRows {
  float* data = nullptr;
  std::int64_t stride = 0;
};

/// The kernels for one instruction set. They check nothing, and compute each row by itself: its
/// bits do not depend on the rows beside it.
struct Kernels {
  /// out[r] = activation(in[r] · weights + bias) for num_rows rows of K and N floats.
  void (*linear)(const Packed& weights, Rows in, std::int64_t num_rows, Activation activation,
                 OutRows out);
  /// For each of num_rows: `num_vectors` vectors of `dim` floats follow each other in `in`;
  /// writes the products of each pair (i, j) of them, i < j, ordered by i and then by j.
  void (*dot)(Rows in, std::int64_t num_rows, std::int64_t num_vectors, std::int64_t dim,
              OutRows out);
};

const Kernels& PlainKernels();
#if defined(__x86_64__)
const Kernels& Avx2Kernels();
const Kernels& Avx512Kernels();
#endif

/// Returns those of ChosenIsa().
const Kernels& ChosenKernels();

}  // namespace recsys::ops

#endif  // RECSYS_OPS_KERNELS_KERNELS_H_
