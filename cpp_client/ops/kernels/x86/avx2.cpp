#include "ops/kernels/x86/lanes_avx2.h"
// After the lanes.
#include "ops/kernels/table.h"

namespace recsys::ops {

const Kernels& Avx2Kernels() { return kKernels; }

}  // namespace recsys::ops
