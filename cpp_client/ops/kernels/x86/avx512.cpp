#include "ops/kernels/x86/lanes_avx512.h"
// After the lanes.
#include "ops/kernels/table.h"

namespace recsys::ops {

const Kernels& Avx512Kernels() noexcept { return kKernels; }

}  // namespace recsys::ops
