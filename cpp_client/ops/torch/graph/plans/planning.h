#ifndef RECSYS_OPS_TORCH_GRAPH_PLANS_PLANNING_H_
#define RECSYS_OPS_TORCH_GRAPH_PLANS_PLANNING_H_

#include <torch/csrc/jit/ir/ir.h>

#include <memory>

#include "ops/packed.h"

namespace recsys::ops {

/// Exchanges nodes of a frozen graph that work row by row for plans: one recsys_ops::plan for all
/// that can be computed together. Linear layers, interactions and lookups must be those of
/// recsys_ops. `dot_type`: of the products of interactions. Returns how many nodes the plans
/// compute.
int PlanRows(const std::shared_ptr<torch::jit::Graph>& graph, WeightType dot_type);

}  // namespace recsys::ops

#endif  // RECSYS_OPS_TORCH_GRAPH_PLANS_PLANNING_H_
