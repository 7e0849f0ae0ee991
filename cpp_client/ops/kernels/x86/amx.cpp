#include "ops/kernels/x86/lanes_avx512.h"
// After the lanes.
#include "ops/kernels/x86/tile_kernel.h"

namespace recsys::ops {
namespace {

template <typename Tiles>
Kernels WithTiles() noexcept {
  Kernels kernels = Avx512Kernels();
  kernels.linear = &TileLinear<Tiles>;
  return kernels;
}

}  // namespace

const Kernels& AmxKernels() {
  static const Kernels kKernels = WithTiles<AmxTiles>();
  return kKernels;
}

const Kernels& EmulatedAmxKernels() {
  static const Kernels kKernels = WithTiles<PlainTiles>();
  return kKernels;
}

}  // namespace recsys::ops
