#include "ops/kernels/lanes_plain.h"
// After the lanes, in this order.
#include "ops/kernels/linear_kernel.h"
// Uses what stands in the one above.
#include "ops/kernels/dot_kernel.h"
#include "ops/kernels/form_kernel.h"
#include "ops/kernels/math_kernel.h"
// Uses what stands in the one above.
#include "ops/kernels/elementwise_kernel.h"
#include "ops/kernels/lookup_kernel.h"

namespace recsys::ops {

const Kernels& PlainKernels() {
  static constexpr Kernels kKernels{&Linear, &Dot, &Find, &Pool, &Compute, &Contract, &Broadcast};
  return kKernels;
}

}  // namespace recsys::ops
