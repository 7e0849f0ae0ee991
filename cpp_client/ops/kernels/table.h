// All kernels, for the lanes of the file that includes this after them. In this order: some use
// what stands in those before them.

#include "ops/kernels/linear_kernel.h"
// After it.
#include "ops/kernels/dot_kernel.h"
#include "ops/kernels/form_kernel.h"
#include "ops/kernels/math_kernel.h"
// After it.
#include "ops/kernels/elementwise_kernel.h"
#include "ops/kernels/lookup_kernel.h"

namespace recsys::ops {
namespace {

constexpr Kernels kKernels{&Linear, &Dot, &Find, &Pool, &Compute, &Contract, &Broadcast};

}  // namespace
}  // namespace recsys::ops
