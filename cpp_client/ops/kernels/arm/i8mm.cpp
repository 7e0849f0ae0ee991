#include "ops/kernels/arm/lanes_neon.h"
// After the lanes.
#include "ops/kernels/table.h"

namespace recsys::ops {

const Kernels& I8mmKernels() { return kKernels; }

}  // namespace recsys::ops
