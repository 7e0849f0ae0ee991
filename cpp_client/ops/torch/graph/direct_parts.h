#ifndef RECSYS_OPS_TORCH_GRAPH_DIRECT_PARTS_H_
#define RECSYS_OPS_TORCH_GRAPH_DIRECT_PARTS_H_

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>

#include <memory>
#include <optional>

#include "ops/torch/program.h"

namespace recsys::ops {

/// Returns nothing for a graph that does anything else than plans and gathers. `graph` has passed
/// Exchange.
std::optional<ProgramParts> ProgramPartsOf(const torch::jit::Graph& graph);

/// The same as a program that can be called; null for a graph that does anything else.
std::shared_ptr<Program> ProgramOf(const torch::jit::Module& frozen);

}  // namespace recsys::ops

#endif  // RECSYS_OPS_TORCH_GRAPH_DIRECT_PARTS_H_
