#include "ops/torch/graph/exchange.h"

#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>
#include <torch/csrc/jit/passes/peephole_list_idioms.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "ops/isa.h"
#include "ops/packed.h"
#include "ops/torch/graph/folding.h"
#include "ops/torch/graph/lookups/lookups.h"
#include "ops/torch/graph/nodes.h"
#include "ops/torch/graph/plans/planning.h"
#include "ops/torch/operators.h"

namespace recsys::ops {
namespace {

// Of the original, which deltas change, and of the packed form: 64 MB each as float32.
constexpr std::int64_t kMostWeights = 1 << 24;

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

/// Returns the activation that a node computes; "none" for others.
const char* ActivationOf(const Node* node) {
  if (node == nullptr) return "none";
  if (Is(node, "aten::relu") || Is(node, "aten::relu_")) return "relu";
  return Is(node, "aten::sigmoid") ? "sigmoid" : "none";
}

class Exchanging {
 public:
  Exchanging(std::shared_ptr<Graph> graph, std::string dtype)
      : graph_(std::move(graph)), dtype_(std::move(dtype)), lookups_(graph_) {}

  Exchanged Run(bool plans) {
    // Items of lists that are made here become what they are made of.
    torch::jit::PeepholeOptimizeListIdioms(graph_);
    is_written_ = WritesTensors(graph_->block());
    Visit(graph_->block());
    // Before plans: what checks and policies have left is no user of values.
    lookups_.RemoveChecks();
    if (plans) {
      found_.num_planned = PlanRows(graph_, DotTypeOf(dtype_));
    }
    torch::jit::EliminateDeadCode(graph_);
    return std::move(found_);
  }

 private:
  void Visit(torch::jit::Block* block) {
    for (auto at = block->nodes().begin(); at != block->nodes().end();) {
      Node* const node = *at++;
      for (torch::jit::Block* inner : node->blocks()) Visit(inner);
      if (Is(node, "aten::linear")) {
        // A fused activation goes too.
        while (at != block->nodes().end() && IsFused(node, *at)) ++at;
        Linear(node);
      } else if (Is(node, "aten::index_select")) {
        Dot(node);
      } else if (Is(node, "fbgemm::int_nbit_split_embedding_codegen_lookup_function")) {
        Lookup(node);
      }
    }
  }

  /// Whether a graph writes into any tensors but those that layers have made for a ReLU alone, and
  /// IDs that are checked.
  static bool WritesTensors(torch::jit::Block* block) {
    for (Node* node : block->nodes()) {
      for (torch::jit::Block* inner : node->blocks()) {
        if (WritesTensors(inner)) return true;
      }
      if (WrittenTensors(node).empty() || Is(node, "fbgemm::bounds_check_indices")) continue;
      const bool is_fused = Is(node, "aten::relu_") && Is(node->input(0)->node(), "aten::linear") &&
                            OnlyUser(node->input(0)) == node;
      if (!is_fused) return true;
    }
    return false;
  }

  static bool IsFused(const Node* linear, const Node* next) {
    return OnlyUser(linear->output()) == next && std::string_view(ActivationOf(next)) != "none";
  }

  void Linear(Node* node) {
    auto weight = TensorOf(node->input(1));
    const bool has_bias = !node->input(2)->mustBeNone();
    const auto bias = has_bias ? TensorOf(node->input(2)) : std::nullopt;
    const std::string reason = WhyNot(weight, has_bias, bias);
    if (!reason.empty()) {
      found_.left.push_back("aten::linear: " + reason);
      return;
    }
    // What is computed elsewhere than in the graph must be the same there.
    if (!is_written_) FoldSums(graph_.get(), node, &*weight);
    const c10::optional<at::Tensor> given = bias ? c10::optional<at::Tensor>(*bias) : c10::nullopt;
    const at::Tensor packed = PackWeights(*weight, given, dtype_);
    Node* const next = OnlyUser(node->output());
    const char* const activation = ActivationOf(next);
    const bool is_fused = std::string_view(activation) != "none";
    const torch::jit::WithInsertPoint here(node);
    Value* const output = Call(
        graph_.get(), "recsys_ops::linear",
        {node->input(0), graph_->insertConstant(packed), graph_->insertConstant(weight->size(0)),
         graph_->insertConstant(std::string(activation))});
    (is_fused ? next : node)->output()->replaceAllUsesWith(output);
    if (is_fused) next->destroy();
    node->destroy();
    ++found_.num_linear;
  }

  static std::string WhyNot(const std::optional<at::Tensor>& weight, bool has_bias,
                            const std::optional<at::Tensor>& bias) {
    if (!weight) return "its weights are computed";
    if (has_bias && !bias) return "its bias is computed";
    if (!weight->device().is_cpu()) return "its weights are on " + weight->device().str();
    if (weight->scalar_type() != at::kFloat) return "its weights are not float32";
    if (weight->dim() != 2) return "its weights are not a matrix";
    if (!IsPackable(weight->size(0), weight->size(1))) {
      return "its weights are " + std::to_string(weight->size(0)) + " by " +
             std::to_string(weight->size(1));
    }
    if (weight->numel() > kMostWeights) return "its weights are too many to hold them twice";
    if (!weight->isfinite().all().item<bool>()) return "its weights are not finite";
    return {};
  }

  /// cat([dense, index_select(reshape(bmm(v, transpose(v, 1, 2)), [-1, V * V]), 1, pairs)], 1) with
  /// v = cat([unsqueeze(dense, 1), sparse...], 1), and pairs those above the diagonal.
  void Dot(Node* pairs) {
    if (is_written_) return;
    Node* const flat = pairs->input(0)->node();
    if (!Is(flat, "aten::reshape") || !IsNumber(pairs->input(1), 1)) return;
    Node* const products = flat->input(0)->node();
    if (!Is(products, "aten::bmm")) return;
    Node* const transposed = products->input(1)->node();
    Value* const vectors = products->input(0);
    if (!Is(transposed, "aten::transpose") || transposed->input(0) != vectors ||
        !IsNumber(transposed->input(1), 1) || !IsNumber(transposed->input(2), 2)) {
      return;
    }
    const std::vector<Value*> parts = Columns(vectors->node());
    Node* const list = OnlyUser(pairs->output());
    Node* const joined = list == nullptr ? nullptr : OnlyUser(list->output());
    const std::vector<Value*> outputs = Columns(joined);
    if (parts.size() < 2 || outputs.size() != 2 || outputs[1] != pairs->output()) return;
    Value* const dense = outputs[0];
    Node* const unsqueezed = parts[0]->node();
    if (!Is(unsqueezed, "aten::unsqueeze") || !IsNumber(unsqueezed->input(1), 1) ||
        unsqueezed->input(0) != dense) {
      return;
    }
    const auto indices = TensorOf(pairs->input(2));
    const auto shape = torch::jit::toIValue(flat->input(1));
    if (!indices || !shape || !shape->isIntList() || shape->toIntVector().size() != 2) return;
    if (!ArePairs(*indices, shape->toIntVector()[1])) {
      found_.left.emplace_back("aten::bmm: its products are not those above the diagonal");
      return;
    }
    const torch::jit::WithInsertPoint here(joined);
    Value* const sparse = Joined({parts.begin() + 1, parts.end()}, vectors->node());
    joined->output()->replaceAllUsesWith(
        Call(graph_.get(), "recsys_ops::dot_interaction", {dense, sparse}));
    ++found_.num_dot;
  }

  void Lookup(Node* node) {
    const std::string reason = lookups_.Exchange(node);
    if (reason.empty()) {
      ++found_.num_lookup;
    } else {
      found_.left.push_back("fbgemm lookup: " + reason);
    }
  }

  /// Returns the parts of a cat along dimension 1; none for another node or null.
  static std::vector<Value*> Columns(Node* node) {
    if (node == nullptr || !Is(node, "aten::cat") || !IsNumber(node->input(1), 1)) return {};
    Node* const list = node->input(0)->node();
    if (!Is(list, "prim::ListConstruct")) return {};
    return list->inputs().vec();
  }

  /// Returns the values concatenated as `cat` does it.
  Value* Joined(const std::vector<Value*>& values, const Node* cat) {
    if (values.size() == 1) return values[0];
    Node* const list = graph_->createList(c10::TensorType::get(), values);
    graph_->insertNode(list);
    return Call(graph_.get(), "aten::cat", {list->output(), cat->input(1)});
  }

  /// Whether indices into a flat matrix are those above its diagonal, row by row.
  static bool ArePairs(const at::Tensor& indices, std::int64_t size) {
    std::int64_t num = 1;
    while (num * num < size) ++num;
    if (num * num != size || indices.scalar_type() != at::kLong || indices.dim() != 1 ||
        !indices.device().is_cpu()) {
      return false;
    }
    const at::Tensor above = at::triu_indices(num, num, 1);
    return at::equal(indices, above[0] * num + above[1]);
  }

  const std::shared_ptr<Graph> graph_;
  const std::string dtype_;
  LookupExchange lookups_;
  bool is_written_ = false;
  Exchanged found_;
};

}  // namespace

Exchanged Exchange(torch::jit::Module* frozen, const std::string& dtype, bool plans) {
  RegisterOperators();
  ChosenIsa();  // throws for a wrong RECSYS_ISA now, not in the first batch
  return Exchanging(frozen->get_method("forward").graph(), dtype).Run(plans);
}

}  // namespace recsys::ops
