#include "ops/torch/graph/nodes.h"

#include <torch/csrc/jit/ir/constants.h>

#include <algorithm>
#include <array>

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

std::optional<float> FloatOf(const Value* value) {
  const auto constant = torch::jit::toIValue(value);
  if (!constant || !(constant->isDouble() || constant->isInt())) return std::nullopt;
  return constant->isInt() ? static_cast<float>(constant->toInt())
                           : static_cast<float>(constant->toDouble());
}

std::optional<Reduction> ReductionOf(const Node* node) {
  const std::size_t num_inputs = node->inputs().size();
  const bool is_sum = Is(node, "aten::sum"), is_vector = Is(node, "aten::linalg_vector_norm");
  // Those with other inputs reduce all dimensions, or change the type.
  if (!(is_sum && num_inputs == 4) && !(is_vector && num_inputs == 5) &&
      !(Is(node, "aten::norm") && num_inputs == 4)) {
    return std::nullopt;
  }
  if (!is_sum && FloatOf(node->input(1)) != 2.0F) return std::nullopt;
  if ((is_sum || is_vector) && !node->input(num_inputs - 1)->mustBeNone()) return std::nullopt;
  const std::size_t at = is_sum ? 1 : 2;
  const auto over = NumbersOf(node->input(at));
  const auto keep = torch::jit::toIValue(node->input(at + 1));
  if (over.size() != 1 || !over[0] || !keep || !keep->isBool()) return std::nullopt;
  return Reduction{*over[0], keep->toBool()};
}

bool IsSumOverSecond(const Node* node) {
  const auto reduced = ReductionOf(node);
  return Is(node, "aten::sum") && reduced && reduced->dim == 1 && !reduced->is_kept;
}

bool IsPure(const Node* node) {
  // Those of torch's own that have no schema, and return new values alone.
  static constexpr std::array<const char*, 9> kWithoutSchema = {
      "prim::Constant",      "prim::ListConstruct",  "prim::ListUnpack",
      "prim::DictConstruct", "prim::TupleConstruct", "prim::TupleUnpack",
      "prim::TupleIndex",    "prim::GetAttr",        "prim::Uninitialized"};
  if (!node->blocks().empty() || node->hasSideEffects()) return false;
  const auto* const schema = node->maybeSchema();
  if (schema != nullptr) return !schema->is_mutable() && !schema->returns().empty();
  return std::any_of(kWithoutSchema.begin(), kWithoutSchema.end(),
                     [&](const char* name) { return Is(node, name); });
}

std::vector<const Value*> WrittenTensors(const Node* node) {
  std::vector<const Value*> written;
  const auto* const schema = node->maybeSchema();
  if (schema == nullptr || !schema->is_mutable()) return written;
  for (std::size_t i = 0; i < schema->arguments().size() && i < node->inputs().size(); ++i) {
    const auto* const alias = schema->arguments()[i].alias_info();
    if (alias == nullptr || !alias->isWrite()) continue;
    const auto type = node->input(i)->type();
    const bool is_of_tensors = type->isSubtypeOf(*c10::TensorType::get()) ||
                               type->isSubtypeOf(*c10::ListType::ofTensors());
    // A list of tensors is written to itself, but by operators such as _foreach_add_.
    if (is_of_tensors) written.push_back(node->input(i));
  }
  return written;
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
