#ifndef RECSYS_OPS_TORCH_GRAPH_NODES_H_
#define RECSYS_OPS_TORCH_GRAPH_NODES_H_

// Reading and making nodes of a frozen TorchScript graph.

#include <torch/csrc/jit/ir/ir.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace recsys::ops {

bool Is(const torch::jit::Node* node, const char* name);

/// Returns a constant; nothing for other values.
std::optional<at::Tensor> TensorOf(const torch::jit::Value* value);
std::optional<std::int64_t> NumberOf(const torch::jit::Value* value);
bool IsNumber(const torch::jit::Value* value, std::int64_t expected);

/// Returns a list of numbers, those that are computed as nothing; empty for other values.
std::vector<std::optional<std::int64_t>> NumbersOf(const torch::jit::Value* value);

/// Returns a whole number or another one.
std::optional<float> FloatOf(const torch::jit::Value* value);

/// What a sum or a Euclidean norm reduces.
struct Reduction {
  std::int64_t dim = 0;
  /// Whether the dimension stays, with one number.
  bool is_kept = false;
};

/// Returns what a sum or a Euclidean norm over one dimension reduces; nothing for other nodes.
std::optional<Reduction> ReductionOf(const torch::jit::Node* node);

/// Whether a node is sum(x, 1): over the second dimension, which is left out.
bool IsSumOverSecond(const torch::jit::Node* node);

/// Whether all that a node does is what it returns. Others write to what they are given or to
/// attributes, print, raise or run blocks: nothing may be moved past them.
bool IsPure(const torch::jit::Node* node);

/// Returns the tensors, or lists of tensors, that a node writes to.
std::vector<const torch::jit::Value*> WrittenTensors(const torch::jit::Node* node);

/// Returns the only node that uses a value; null if there are several.
torch::jit::Node* OnlyUser(const torch::jit::Value* value);

/// Returns the values in the list that a node takes first; empty if they are not known.
std::vector<torch::jit::Value*> ListOf(torch::jit::Node* node);

/// Inserts a call that returns a tensor, where the graph inserts nodes.
torch::jit::Value* Call(torch::jit::Graph* graph, const char* name,
                        at::ArrayRef<torch::jit::Value*> inputs);

}  // namespace recsys::ops

#endif  // RECSYS_OPS_TORCH_GRAPH_NODES_H_
