#include "ops/torch/graph/nodes.h"

#include <torch/csrc/jit/ir/constants.h>

namespace recsys::ops {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

bool Is(const Node* node, const char* name) {
  return node->kind() == c10::Symbol::fromQualString(name);
}

std::optional<at::Tensor> TensorOf(const Value* value) {
  const auto constant = torch::jit::toIValue(value);
  if (!constant || !constant->isTensor()) return std::nullopt;
  return constant->toTensor();
}

std::optional<std::int64_t> NumberOf(const Value* value) {
  const auto constant = torch::jit::toIValue(value);
  if (!constant || !constant->isInt()) return std::nullopt;
  return constant->toInt();
}

bool IsNumber(const Value* value, std::int64_t expected) { return NumberOf(value) == expected; }

std::vector<std::optional<std::int64_t>> NumbersOf(const Value* value) {
  std::vector<std::optional<std::int64_t>> numbers;
  const auto constant = torch::jit::toIValue(value);
  if (constant && constant->isIntList()) {
    for (const std::int64_t number : constant->toIntVector()) numbers.emplace_back(number);
  } else if (Is(value->node(), "prim::ListConstruct")) {
    for (const Value* item : value->node()->inputs()) numbers.push_back(NumberOf(item));
  }
  return numbers;
}

bool IsSumOverSecond(const Node* node) {
  // There is another one, over all dimensions.
  if (!Is(node, "aten::sum") || node->inputs().size() != 4) return false;
  const auto over = NumbersOf(node->input(1));
  const auto keep = torch::jit::toIValue(node->input(2));
  return over.size() == 1 && over[0] == 1 && keep && !keep->toBool() &&
         node->input(3)->mustBeNone();
}

Node* OnlyUser(const Value* value) {
  return value->uses().size() == 1 ? value->uses()[0].user : nullptr;
}

std::vector<Value*> ListOf(Node* node) {
  Node* const list = node->input(0)->node();
  if (!Is(list, "prim::ListConstruct")) return {};
  return list->inputs().vec();
}

Value* Call(Graph* graph, const char* name, at::ArrayRef<Value*> inputs) {
  Node* const node = graph->create(c10::Symbol::fromQualString(name), inputs, 1);
  graph->insertNode(node);
  node->output()->setType(c10::TensorType::get());
  return node->output();
}

}  // namespace recsys::ops
