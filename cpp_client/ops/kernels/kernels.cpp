#include "ops/kernels/kernels.h"

namespace recsys::ops {

std::int64_t NumIds(const Lookup& lookup) {
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < lookup.num_slots; ++i) {
    const std::int64_t* const offsets = OffsetsOf(lookup, lookup.slots[i]);
    count += offsets[lookup.end_bag] - offsets[lookup.first_bag];
  }
  return count;
}

const Kernels& ChosenKernels() {
  switch (ChosenIsa()) {
#if defined(__x86_64__)
    case Isa::kAmx:
      return AmxKernels();
    case Isa::kAvx512:
      return Avx512Kernels();
    case Isa::kAvx2:
      return Avx2Kernels();
#elif defined(__aarch64__)
    case Isa::kI8mm:
      return I8mmKernels();
    case Isa::kDotprod:
      return DotprodKernels();
    case Isa::kNeon:
      return NeonKernels();
#endif
    default:
      return PlainKernels();
  }
}

}  // namespace recsys::ops
