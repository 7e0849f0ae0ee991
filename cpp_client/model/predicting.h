#ifndef RECSYS_MODEL_PREDICTING_H_
#define RECSYS_MODEL_PREDICTING_H_

#include <torch/types.h>

#include <vector>

#include "recsys/model.h"

namespace recsys {

/// A batch as the graph takes it: views of the batch's memory, which stays the caller's.
std::vector<c10::IValue> GraphInputs(const Batch& batch, const Signature& signature);

/// What the graph returned, checked against the signature and not copied, but where it lies in the
/// batch's memory or not in one piece. Throws Error (kExecution) where it is not what the signature
/// says.
Outputs CheckedOutputs(const c10::IValue& returned, const Signature& signature,
                       std::int64_t num_rows, const std::vector<c10::IValue>& inputs);

}  // namespace recsys

#endif  // RECSYS_MODEL_PREDICTING_H_
