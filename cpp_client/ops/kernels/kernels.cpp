#include "ops/kernels/kernels.h"

namespace recsys::ops {

const Kernels& ChosenKernels() {
  switch (ChosenIsa()) {
#if defined(__x86_64__)
    case Isa::kAvx512:
      return Avx512Kernels();
    case Isa::kAvx2:
      return Avx2Kernels();
#endif
    default:
      return PlainKernels();
  }
}

}  // namespace recsys::ops
