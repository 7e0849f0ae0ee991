#include "ops/torch/graph/folding.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "ops/torch/graph/nodes.h"
#include "ops/torch/graph/plans/row_shapes.h"

namespace recsys::ops {
namespace {

using torch::jit::Node;
using torch::jit::Value;

bool IsSum(const Node* node) {
  return (Is(node, "aten::add") || Is(node, "aten::sub")) && node->inputs().size() == 3 &&
         IsNumber(node->input(2), 1);
}

/// A part of the layer's input, and the columns of its weights.
struct LayerPart {
  Value* value = nullptr;
  at::Tensor columns;
};

/// Returns the parts that a layer's input is put together of; empty if it is not, or a width is not
/// known.
std::vector<LayerPart> LayerPartsOf(torch::jit::Graph* graph, Node* join,
                                    const at::Tensor& weight) {
  const std::vector<Value*> values = ListOf(join);
  const auto is_sum = [](const Value* value) { return IsSum(value->node()); };
  if (std::none_of(values.begin(), values.end(), is_sum)) return {};
  const RowShapes shapes(graph);
  std::vector<LayerPart> parts;
  std::int64_t column = 0;
  for (Value* const value : values) {
    const auto shape = shapes.Of(value);
    if (!shape || shape->dims.size() != 1 || DimOf(join->input(1), *shape) != 1 ||
        column + shape->width() > weight.size(1)) {
      return {};
    }
    parts.push_back({value, weight.slice(1, column, column + shape->width())});
    column += shape->width();
  }
  if (column != weight.size(1)) return {};
  return parts;
}

/// Adds a sum's columns to those of its operands. Returns whether both are parts of its width.
bool Fold(const LayerPart& sum, std::vector<LayerPart>* parts) {
  const Node* const node = sum.value->node();
  const auto find = [&](const Value* operand) {
    return std::find_if(parts->begin(), parts->end(), [&](const LayerPart& part) {
      return part.value == operand && part.columns.sizes() == sum.columns.sizes();
    });
  };
  const auto first = find(node->input(0)), second = find(node->input(1));
  if (first == parts->end() || second == parts->end()) return false;
  first->columns = first->columns + sum.columns;
  second->columns =
      Is(node, "aten::sub") ? second->columns - sum.columns : second->columns + sum.columns;
  return true;
}

}  // namespace

void FoldSums(torch::jit::Graph* graph, Node* linear, at::Tensor* weight) {
  Node* const join = linear->input(0)->node();
  if (!Is(join, "aten::cat")) return;
  std::vector<LayerPart> parts = LayerPartsOf(graph, join, *weight);
  const std::size_t num_parts = parts.size();
  // Backwards: a sum's operands stand before it, and may be sums.
  for (std::size_t i = num_parts; i-- > 0;) {
    if (!IsSum(parts[i].value->node())) continue;
    const LayerPart sum = parts[i];
    if (Fold(sum, &parts)) parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(i));
  }
  if (parts.size() == num_parts) return;
  std::vector<Value*> values;
  std::vector<at::Tensor> columns;
  for (const LayerPart& part : parts) {
    values.push_back(part.value);
    columns.push_back(part.columns);
  }
  const at::Tensor folded = at::cat(columns, 1);
  if (!folded.isfinite().all().item<bool>()) return;
  const torch::jit::WithInsertPoint here(linear);
  Node* const list = graph->insertNode(graph->createList(c10::TensorType::get(), values));
  linear->replaceInput(0, Call(graph, "aten::cat", {list->output(), join->input(1)}));
  *weight = folded;
}

}  // namespace recsys::ops
