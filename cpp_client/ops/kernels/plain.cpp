#include "ops/kernels/lanes_plain.h"
// After the lanes.
#include "ops/kernels/table.h"

namespace recsys::ops {

const Kernels& PlainKernels() { return kKernels; }

}  // namespace recsys::ops
