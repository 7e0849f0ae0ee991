#ifndef RECSYS_OPS_TORCH_GRAPH_PLANS_NODE_STEPS_H_
#define RECSYS_OPS_TORCH_GRAPH_PLANS_NODE_STEPS_H_

// Which nodes of a graph a plan computes, each as one of its steps.

#include <torch/csrc/jit/ir/ir.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "ops/kernels/kernels.h"
#include "ops/torch/graph/plans/row_shapes.h"

namespace recsys::ops {

/// A step with a number.
struct WithFactor {
  ElementwiseKind kind = ElementwiseKind::kScale;
  float factor = 1;
};

/// Returns what a node computes of rows and a number; nothing for other nodes.
std::optional<WithFactor> WithFactorOf(const torch::jit::Node* node);

/// Returns what a node computes of two operands, and of one.
std::optional<ElementwiseKind> BinaryKindOf(const torch::jit::Node* node);
std::optional<ElementwiseKind> UnaryKindOf(const torch::jit::Node* node);

/// Returns how often a binary step takes each number of its first operand; 0 if it cannot.
std::int64_t CountOf(const torch::jit::Value* a, const torch::jit::Value* b,
                     const RowShapes& shapes);

/// Returns the number of vectors in a row that a layer_norm takes one by one; 0 if it is no step.
std::int64_t NumNormalized(const torch::jit::Node* node, const RowShapes& shapes);

/// Returns which operand of a binary node becomes the first one of the step, whose numbers may be
/// repeated: what is subtracted from, what is divided by, either one else. Nothing if neither can.
std::optional<std::size_t> FirstOf(const torch::jit::Node* node, const RowShapes& shapes);

/// Whether a node whose shape is known becomes a step.
bool IsStep(const torch::jit::Node* node, const RowShapes& shapes);

}  // namespace recsys::ops

#endif  // RECSYS_OPS_TORCH_GRAPH_PLANS_NODE_STEPS_H_
