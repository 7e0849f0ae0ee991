#include "ops/torch/row_shapes.h"

#include <torch/csrc/jit/ir/constants.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "ops/torch/nodes.h"

namespace recsys::ops {
namespace {

using torch::jit::Node;
using torch::jit::Value;

std::int64_t Product(const std::vector<std::int64_t>& dims, std::size_t from = 0) {
  return std::accumulate(dims.begin() + static_cast<std::ptrdiff_t>(from), dims.end(),
                         std::int64_t{1}, std::multiplies<>());
}

bool IsOneOf(const Node* node, std::initializer_list<const char*> names) {
  return std::any_of(names.begin(), names.end(),
                     [node](const char* name) { return Is(node, name); });
}

/// Operators whose output has the shape of their first input, and takes each number by itself.
bool IsUnary(const Node* node) {
  return IsOneOf(node, {"aten::relu", "aten::sigmoid", "aten::tanh", "aten::abs", "aten::sign",
                        "aten::log1p", "aten::clamp", "aten::exp", "aten::neg"});
}

/// Operators whose output has the shape to which their tensors are broadcast.
bool IsBroadcast(const Node* node) {
  return IsOneOf(node, {"aten::add", "aten::sub", "aten::mul", "aten::div", "aten::minimum",
                        "aten::maximum", "aten::where"});
}

/// Returns the dims of two operands that are broadcast; nothing if they do not fit.
std::optional<std::vector<std::int64_t>> Broadcast(const std::vector<std::int64_t>& a,
                                                   const std::vector<std::int64_t>& b) {
  if (a.size() != b.size()) return std::nullopt;
  std::vector<std::int64_t> dims;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i] && a[i] != 1 && b[i] != 1) return std::nullopt;
    dims.push_back(std::max(a[i], b[i]));
  }
  return dims;
}

}  // namespace

std::int64_t RowShape::width() const { return Product(dims); }

std::optional<std::int64_t> DimOf(const Value* dim, const RowShape& shape) {
  const auto number = NumberOf(dim);
  if (!number) return std::nullopt;
  return *number < 0 ? *number + static_cast<std::int64_t>(shape.dims.size()) + 1 : *number;
}

std::optional<std::int64_t> OffsetOfView(const Node* node, const RowShape& from) {
  if (IsOneOf(node, {"aten::reshape", "aten::view", "aten::flatten", "aten::unsqueeze",
                     "aten::squeeze"})) {
    return 0;
  }
  if (IsOneOf(node, {"aten::narrow", "aten::select"})) {
    const auto start = NumberOf(node->input(2));
    if (!start || *start < 0) return std::nullopt;
    return *start * Product(from.dims, 1);
  }
  return std::nullopt;
}

RowShapes::RowShapes(torch::jit::Graph* graph) {
  for (Node* node : graph->block()->nodes()) {
    const auto shape = node->outputs().size() == 1 ? ShapeOf(node) : std::nullopt;
    if (shape && shape->width() > 0) shapes_.emplace(node->output(), *shape);
  }
}

std::optional<RowShape> RowShapes::Of(const Value* value) const {
  const auto found = shapes_.find(value);
  if (found == shapes_.end()) return std::nullopt;
  RowShape shape = found->second;
  shape.batch = Root(shape.batch);
  return shape;
}

std::optional<RowShape> RowShapes::ShapeOf(Node* node) {
  if (Is(node, "recsys_ops::lookup")) {
    const auto slots = TensorOf(node->input(1));
    const auto pooling = NumberOf(node->input(5)), width = NumberOf(node->input(6));
    if (!slots || !pooling || *pooling == 2 || !width) return std::nullopt;
    return RowShape{{*width}, BatchOf({node->input(2), slots->size(0)})};
  }
  if (IsOneOf(node, {"aten::reshape", "aten::view"})) return OfReshape(node);
  if (Is(node, "aten::cat") || Is(node, "aten::stack"))
    return OfJoin(node, Is(node, "aten::stack"));
  if (node->inputs().empty()) return std::nullopt;
  const auto first = Of(node->input(0));
  if (Is(node, "recsys_ops::linear")) {
    const auto width = NumberOf(node->input(2));
    if (!first || first->dims.size() != 1 || !width) return std::nullopt;
    return RowShape{{*width}, first->batch};
  }
  if (Is(node, "recsys_ops::dot_interaction")) {
    const auto second = Of(node->input(1));
    if (!first || !second) return std::nullopt;
    Unite(first->batch, second->batch);
    const std::int64_t num = second->dims[0] + 1;
    return RowShape{{first->dims[0] + num * (num - 1) / 2}, first->batch};
  }
  if (IsBroadcast(node)) return OfNumbers(node);
  if (!first) return std::nullopt;
  if (IsUnary(node) || (Is(node, "aten::softmax") && node->input(2)->mustBeNone())) return first;
  if (Is(node, "aten::index_select")) {
    if (IsNumber(node->input(1), 0)) return RowShape{first->dims, BatchOf({node->input(2), 0})};
    const auto columns = TensorOf(node->input(2));
    if (!IsNumber(node->input(1), 1) || !columns || columns->dim() != 1 || first->dims.empty()) {
      return std::nullopt;
    }
    RowShape shape = *first;
    shape.dims[0] = columns->numel();
    return shape;
  }
  return OfPart(node);
}

/// reshape(x, [-1, ...]) of rows, and reshape(x, [B, N]) of anything.
std::optional<RowShape> RowShapes::OfReshape(const Node* node) {
  const auto sizes = NumbersOf(node->input(1));
  RowShape shape;
  for (std::size_t i = 1; i < sizes.size(); ++i) {
    if (!sizes[i] || *sizes[i] < 0) return std::nullopt;
    shape.dims.push_back(*sizes[i]);
  }
  if (sizes.empty()) return std::nullopt;
  const auto from = Of(node->input(0));
  if (from && from->width() == shape.width() && (sizes[0] == -1 || !sizes[0])) {
    shape.batch = from->batch;
    return shape;
  }
  const auto list = node->input(1)->node();
  if (sizes[0] || !Is(list, "prim::ListConstruct")) return std::nullopt;
  const auto source = SourceOfSize(list->input(0));
  if (!source || shape.dims.size() != 1) return std::nullopt;
  shape.batch = BatchOf(*source);
  return shape;
}

std::optional<RowShape> RowShapes::OfJoin(Node* node, bool is_stack) {
  RowShape joined;
  for (const Value* part : ListOf(node)) {
    const auto shape = Of(part);
    const bool is_first = joined.dims.empty();
    if (!shape || shape->dims.empty() || DimOf(node->input(1), *shape) != 1) return std::nullopt;
    std::vector<std::int64_t> dims = shape->dims;
    if (is_stack) dims.insert(dims.begin(), 1);
    if (is_first) {
      joined = {dims, shape->batch};
      continue;
    }
    if (joined.dims.size() != dims.size() ||
        !std::equal(dims.begin() + 1, dims.end(), joined.dims.begin() + 1)) {
      return std::nullopt;
    }
    joined.dims[0] += dims[0];
    Unite(joined.batch, shape->batch);
  }
  if (joined.dims.empty()) return std::nullopt;
  return joined;
}

/// Views of rows other than reshape, and sums over their first dimension.
std::optional<RowShape> RowShapes::OfPart(const Node* node) const {
  RowShape shape = *Of(node->input(0));
  std::vector<std::int64_t>& dims = shape.dims;
  if (Is(node, "aten::flatten")) {
    if (!IsNumber(node->input(1), 1) || !IsNumber(node->input(2), -1)) return std::nullopt;
    dims = {shape.width()};
    return shape;
  }
  // There is another one, over all dimensions.
  if (Is(node, "aten::sum") && node->inputs().size() == 4) {
    const auto over = NumbersOf(node->input(1));
    const auto keep = torch::jit::toIValue(node->input(2));
    if (over.size() != 1 || over[0] != 1 || dims.size() < 2 || !keep || keep->toBool() ||
        !node->input(3)->mustBeNone()) {
      return std::nullopt;
    }
    dims.erase(dims.begin());
    return shape;
  }
  const auto rank = static_cast<std::int64_t>(dims.size());
  if (Is(node, "aten::unsqueeze")) {
    const auto given = NumberOf(node->input(1));
    const std::int64_t at = !given ? 0 : *given < 0 ? *given + rank + 2 : *given;
    if (at < 1 || at > rank + 1) return std::nullopt;
    dims.insert(dims.begin() + at - 1, 1);
    return shape;
  }
  if (Is(node, "aten::squeeze") && node->inputs().size() == 2) {
    const auto at = DimOf(node->input(1), shape);
    if (!at || *at < 1 || *at > rank) return std::nullopt;
    if (dims[static_cast<std::size_t>(*at - 1)] == 1) dims.erase(dims.begin() + *at - 1);
    return shape;
  }
  const bool is_narrow = Is(node, "aten::narrow");
  if ((!is_narrow && !Is(node, "aten::select")) || rank == 0 || DimOf(node->input(1), shape) != 1) {
    return std::nullopt;
  }
  const auto start = NumberOf(node->input(2));
  const auto count = is_narrow ? NumberOf(node->input(3)) : std::int64_t{1};
  if (!start || !count || *start < 0 || *count < 1 || *start > dims[0] - *count) {
    return std::nullopt;
  }
  if (is_narrow) {
    dims[0] = *count;
  } else {
    dims.erase(dims.begin());
  }
  return shape;
}

/// Numbers of rows, of constants and of scalars, taken one by one.
std::optional<RowShape> RowShapes::OfNumbers(const Node* node) const {
  std::optional<RowShape> shape;
  // A condition has no numbers.
  const auto numbers = node->inputs().slice(Is(node, "aten::where") ? 1 : 0);
  for (const Value* input : numbers) {
    if (!input->type()->isSubtypeOf(*c10::TensorType::get())) continue;
    if (const auto constant = TensorOf(input)) {
      // Of a row: the same for all.
      if (constant->dim() > 1 || constant->scalar_type() != at::kFloat) return std::nullopt;
      continue;
    }
    const auto found = Of(input);
    if (!found) return std::nullopt;
    if (!shape) {
      shape = found;
      continue;
    }
    // One of the two could be broadcast over rows.
    const auto dims = Broadcast(shape->dims, found->dims);
    if (shape->batch != found->batch || !dims) return std::nullopt;
    shape->dims = *dims;
  }
  if (!shape) return std::nullopt;
  for (const Value* input : numbers) {
    const auto constant = TensorOf(input);
    if (constant && constant->dim() == 1 &&
        (shape->dims.empty() || constant->size(0) != shape->dims.back())) {
      return std::nullopt;
    }
  }
  return shape;
}

/// A size that tells B: size(lengths, 0) // F.
std::optional<RowShapes::Source> RowShapes::SourceOfSize(const Value* size) const {
  const Node* const divided = size->node();
  const bool is_divided = Is(divided, "aten::floordiv");
  const auto per_row = is_divided ? NumberOf(divided->input(1)) : std::int64_t{1};
  const Node* const of = is_divided ? divided->input(0)->node() : divided;
  if (!per_row || !Is(of, "aten::size") || of->inputs().size() != 2 || !IsNumber(of->input(1), 0)) {
    return std::nullopt;
  }
  return Source{of->input(0), *per_row};
}

int RowShapes::BatchOf(const Source& source) {
  const auto [found, is_new] = batches_.emplace(source, static_cast<int>(roots_.size()));
  if (is_new) roots_.push_back(found->second);
  return Root(found->second);
}

int RowShapes::Root(int batch) const {
  while (roots_[static_cast<std::size_t>(batch)] != batch) {
    batch = roots_[static_cast<std::size_t>(batch)];
  }
  return batch;
}

void RowShapes::Unite(int a, int b) { roots_[static_cast<std::size_t>(Root(a))] = Root(b); }

}  // namespace recsys::ops
