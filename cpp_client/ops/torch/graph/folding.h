#ifndef RECSYS_OPS_TORCH_GRAPH_FOLDING_H_
#define RECSYS_OPS_TORCH_GRAPH_FOLDING_H_

#include <torch/csrc/jit/ir/ir.h>

namespace recsys::ops {

/// Takes sums and differences out of what a linear layer multiplies, where their operands stand
/// beside them: for linear(cat([x, y, x - y]), [P, Q, R]) makes linear(cat([x, y]), [P + R, Q -
/// R]). `weight`: [N, K] float32 of the layer, an `aten::linear`; becomes that of its new input.
/// Layers and lookups before it must be those of recsys_ops.
void FoldSums(torch::jit::Graph* graph, torch::jit::Node* linear, at::Tensor* weight);

}  // namespace recsys::ops

#endif  // RECSYS_OPS_TORCH_GRAPH_FOLDING_H_
