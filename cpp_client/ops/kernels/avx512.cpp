#include "ops/kernels/lanes_avx512.h"
// After the lanes.
#include "ops/kernels/all_kernels.h"

namespace recsys::ops {

const Kernels& Avx512Kernels() {
  static constexpr Kernels kKernels{&Linear, &Dot};
  return kKernels;
}

}  // namespace recsys::ops
