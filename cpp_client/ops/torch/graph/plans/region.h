#ifndef RECSYS_OPS_TORCH_GRAPH_PLANS_REGION_H_
#define RECSYS_OPS_TORCH_GRAPH_PLANS_REGION_H_

#include <torch/csrc/jit/ir/ir.h>

#include <optional>
#include <set>
#include <vector>

#include "ops/plan.h"
#include "ops/torch/graph/plans/row_shapes.h"

namespace recsys::ops {

/// What a node is to a plan.
enum class NodeKind {
  /// Not computed by plans.
  kOther,
  /// Other columns of the same numbers.
  kView,
  /// Columns of several values side by side.
  kJoin,
  kStep,
};

NodeKind KindOf(torch::jit::Node* node, const RowShapes& shapes);

/// Nodes that a plan computes, in their order. What lies between two of them is pure.
struct Region {
  std::vector<torch::jit::Node*> nodes;
  std::set<const torch::jit::Node*> members;

  bool Has(const torch::jit::Value* value) const { return members.count(value->node()) > 0; }
  /// Whether a node outside of it reads a value.
  bool IsOutput(const torch::jit::Value* value) const;
};

/// Returns the first regions of every batch of a graph, without `done`. They end at nodes that are
/// not pure.
std::vector<Region> RegionsOf(torch::jit::Graph* graph, const RowShapes& shapes,
                              const std::set<const torch::jit::Node*>& done);

/// The plan of a region, and what it is called with.
struct RegionPlan {
  Plan plan;
  std::vector<torch::jit::Value*> inputs;
  std::vector<at::Tensor> constants;
  /// Which of the inputs tells the number of rows, and how many of its numbers belong to one.
  std::int64_t rows_of = 0, per_row = 1;
  /// The values of the graph that the plan's outputs stand for, and their widths.
  std::vector<torch::jit::Value*> outputs;
  std::vector<std::int64_t> widths;
};

/// `dot_type`: of the products of interactions, float32 or bfloat16.
RegionPlan PlanOf(const Region& region, const RowShapes& shapes, WeightType dot_type);

}  // namespace recsys::ops

#endif  // RECSYS_OPS_TORCH_GRAPH_PLANS_REGION_H_
