#include "ops/torch/graph/plans/node_steps.h"

#include <torch/csrc/jit/ir/constants.h>

#include <algorithm>

#include "ops/torch/graph/nodes.h"

namespace recsys::ops {

using torch::jit::Node;
using torch::jit::Value;

namespace {

/// Each takes two steps.
constexpr std::int64_t kMostNormalized = 64;

}  // namespace

std::optional<ElementwiseKind> BinaryKindOf(const Node* node) {
  if (Is(node, "aten::mul")) return ElementwiseKind::kMultiply;
  if (Is(node, "aten::div") && node->inputs().size() == 2) return ElementwiseKind::kDivide;
  if (Is(node, "aten::add") && IsNumber(node->input(2), 1)) return ElementwiseKind::kAdd;
  if (Is(node, "aten::sub") && IsNumber(node->input(2), 1)) return ElementwiseKind::kSubtract;
  return std::nullopt;
}

std::optional<ElementwiseKind> UnaryKindOf(const Node* node) {
  if (Is(node, "aten::relu")) return ElementwiseKind::kRelu;
  if (Is(node, "aten::sigmoid")) return ElementwiseKind::kSigmoid;
  if (Is(node, "aten::softmax")) return ElementwiseKind::kSoftmax;
  if (Is(node, "aten::sum")) return ElementwiseKind::kSum;
  if (ReductionOf(node)) return ElementwiseKind::kNorm;
  return std::nullopt;
}

std::optional<WithFactor> WithFactorOf(const Node* node) {
  const bool is_mul = Is(node, "aten::mul"),
             is_div = BinaryKindOf(node) == ElementwiseKind::kDivide;
  const bool is_least =
      Is(node, "aten::clamp_min") || (Is(node, "aten::clamp") && node->input(2)->mustBeNone());
  if (!is_mul && !is_div && !is_least) return std::nullopt;
  const auto factor = FloatOf(node->input(1));
  if (!factor) return std::nullopt;
  if (is_least) return WithFactor{ElementwiseKind::kAtLeast, *factor};
  return WithFactor{ElementwiseKind::kScale, is_div ? 1 / *factor : *factor};
}

std::int64_t CountOf(const Value* a, const Value* b, const RowShapes& shapes) {
  const auto first = shapes.Of(a), second = shapes.Of(b);
  if (!first || !second || first->batch != second->batch) return 0;
  if (first->dims == second->dims) return 1;
  if (first->dims.empty() || first->dims.back() != 1 || first->dims.size() != second->dims.size() ||
      !std::equal(first->dims.begin(), first->dims.end() - 1, second->dims.begin())) {
    return 0;
  }
  return second->dims.back();
}

std::int64_t NumNormalized(const Node* node, const RowShapes& shapes) {
  if (!Is(node, "aten::layer_norm")) return 0;
  const auto from = shapes.Of(node->input(0));
  const auto over = NumbersOf(node->input(1));
  if (!from || from->dims.empty() || over.size() != 1 || over[0] != from->dims.back()) return 0;
  for (const std::size_t at : {2, 3}) {
    if (node->input(at)->mustBeNone()) continue;
    const auto weight = TensorOf(node->input(at));
    if (!weight || weight->scalar_type() != at::kFloat || !weight->is_contiguous()) return 0;
  }
  const std::int64_t num_vectors = from->width() / from->dims.back();
  return FloatOf(node->input(4)) && num_vectors <= kMostNormalized ? num_vectors : 0;
}

std::optional<std::size_t> FirstOf(const Node* node, const RowShapes& shapes) {
  const auto kind = BinaryKindOf(node);
  for (const std::size_t first : {std::size_t{0}, std::size_t{1}}) {
    if (kind == (first == 0 ? ElementwiseKind::kDivide : ElementwiseKind::kSubtract)) continue;
    if (CountOf(node->input(first), node->input(1 - first), shapes) > 0) return first;
  }
  return std::nullopt;
}

bool IsStep(const Node* node, const RowShapes& shapes) {
  if (Is(node, "recsys_ops::lookup") || Is(node, "recsys_ops::dot_interaction")) return true;
  if (Is(node, "recsys_ops::linear")) return TensorOf(node->input(1)).has_value();
  if (WithFactorOf(node) || NumNormalized(node, shapes) > 0) return true;
  if (BinaryKindOf(node)) return FirstOf(node, shapes).has_value();
  if (!UnaryKindOf(node)) return false;
  const auto from = shapes.Of(node->input(0));
  if (ReductionOf(node)) return from->num_items == 0;
  if (!Is(node, "aten::softmax")) return true;
  return from->dims.size() == 1 && DimOf(node->input(1), *from) == 1;
}

}  // namespace recsys::ops
