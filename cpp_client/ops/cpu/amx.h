#ifndef RECSYS_OPS_CPU_AMX_H_
#define RECSYS_OPS_CPU_AMX_H_

#include "ops/kernels/kernels.h"

namespace recsys::ops {

enum class Amx {
  /// The processor has no AMX with INT8 and BF16.
  kMissing,
  /// The system does not let this process use it.
  kDenied,
  kUsable,
};

/// Returns whether this process can use tiles. The first call asks the system for them, for all
/// threads. Any thread may call it.
Amx AmxOfThis();

/// Returns whether small linear layers in bfloat16 and int8, whose sums are exact, have the same
/// bits by two sets of kernels.
bool LinearLayersAgree(const Kernels& some, const Kernels& others);

/// Returns whether tiles compute what Intel's manual says. Only where they are usable; the first
/// call checks it. Any thread may call it.
bool AmxIsRight();

}  // namespace recsys::ops

#endif  // RECSYS_OPS_CPU_AMX_H_
