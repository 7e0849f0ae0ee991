#ifndef RECSYS_MODEL_PREDICTING_H_
#define RECSYS_MODEL_PREDICTING_H_

#include <torch/types.h>

#include <string>
#include <vector>

#include "recsys/error.h"
#include "recsys/model.h"

namespace recsys {

/// Converts a batch into the graph's inputs: views of the batch's memory, which the caller keeps
/// owning.
std::vector<c10::IValue> GraphInputs(const Batch& batch, const Signature& signature);

/// Checks the graph's outputs against the signature. Copies an output only if it uses the batch's
/// memory or is not contiguous. Throws Error (kExecution) if an output does not match the
/// signature.
Outputs CheckedOutputs(const c10::IValue& returned, const Signature& signature,
                       std::int64_t num_rows, const std::vector<c10::IValue>& inputs);

/// Returns the error of a graph: kRequest if an ID that the model computes is no row of its table
/// (recsys/artifact/inputs.py), else kExecution.
Error GraphError(const std::string& text);

/// Returns the outputs of a batch without rows. It reaches no graph: many operations of models do
/// not define what they make of it (recsys/artifact/inputs.py). Throws Error (kExecution) if an
/// output has no batch dimension.
Outputs NoRows(const Signature& signature);

}  // namespace recsys

#endif  // RECSYS_MODEL_PREDICTING_H_
