#include "ops/kernels/lanes_plain.h"
// After the lanes.
#include "ops/kernels/all_kernels.h"

namespace recsys::ops {

const Kernels& PlainKernels() {
  static constexpr Kernels kKernels{&Linear, &Dot};
  return kKernels;
}

}  // namespace recsys::ops
