#include "ops/torch/graph/plans/row_shapes.h"

#include <torch/csrc/jit/ir/constants.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "ops/torch/graph/nodes.h"

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
  // Bounds that are tensors are broadcast.
  return IsOneOf(node,
                 {"aten::relu", "aten::sigmoid", "aten::tanh", "aten::abs", "aten::sign",
                  "aten::log1p", "aten::clamp", "aten::clamp_min", "aten::exp", "aten::neg"}) &&
         std::none_of(node->inputs().begin() + 1, node->inputs().end(), [](const Value* input) {
           return input->type()->isSubtypeOf(*c10::TensorType::get());
         });
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

/// Returns the source of B numbers: the lengths of one feature, lengths[k * B : (k + 1) * B].
SizeSource SourceOfPart(const Value* lengths) {
  const auto part = SlicedBagsOf(lengths);
  if (!part || part->of.first != lengths->node()->input(0) || part->end != part->begin + 1 ||
      part->end > part->of.second) {
    return {lengths, 1};
  }
  return part->of;
}

/// Returns the dim of the vectors in a sequence lookup, or in its part for one feature.
std::optional<std::int64_t> DimOfVectors(const Value* value) {
  const Node* node = value->node();
  if (Is(node, "aten::__getitem__") && Is(node->input(0)->node(), "aten::tensor_split")) {
    node = node->input(0)->node()->input(0)->node();
  }
  if (!Is(node, "recsys_ops::lookup") || !IsNumber(node->input(5), 2)) return std::nullopt;
  return NumberOf(node->input(6));
}

}  // namespace

std::int64_t RowShape::width() const { return Product(dims); }

std::optional<std::int64_t> DimOf(const Value* dim, const RowShape& shape) {
  const auto number = NumberOf(dim);
  if (!number) return std::nullopt;
  const auto rank = static_cast<std::int64_t>(shape.dims.size()) + 1;
  if (*number < 0) return *number + rank;
  return shape.num_items == 0 ? *number : *number - 1;
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
    if (Is(node, "prim::ListUnpack")) AddOutputsOf(node->input(0)->node(), node->outputs());
    const auto shape = node->outputs().size() == 1 ? ShapeOf(node) : std::nullopt;
    if (shape && shape->width() > 0) shapes_.emplace(node->output(), *shape);
  }
}

void RowShapes::AddOutputsOf(const Node* plan, at::ArrayRef<Value*> outputs) {
  if (!Is(plan, "recsys_ops::plan")) return;
  const Node* const inputs = plan->input(1)->node();
  const auto rows_of = NumberOf(plan->input(3)), per_row = NumberOf(plan->input(4));
  const auto widths = NumbersOf(plan->input(5));
  if (!rows_of || !per_row || !Is(inputs, "prim::ListConstruct")) return;
  const Value* const rows = inputs->input(static_cast<std::size_t>(*rows_of));
  const auto known = Of(rows);
  const int batch = known ? known->batch : BatchOf({rows, *per_row});
  for (std::size_t i = 0; i < outputs.size() && i < widths.size(); ++i) {
    RowShape shape{{}, batch};
    if (widths[i] != 0) shape.dims.push_back(*widths[i]);
    shapes_.emplace(outputs[i], shape);
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
    const auto pooling = NumberOf(node->input(5)), width = NumberOf(node->input(6));
    const auto num_features = NumberOf(node->input(7));
    if (!pooling || *pooling == 2 || !width || !num_features) return std::nullopt;
    return RowShape{{*width}, BatchOf({node->input(2), *num_features})};
  }
  if (IsOneOf(node, {"aten::reshape", "aten::view"})) return OfReshape(node);
  if (Is(node, "aten::cat") || Is(node, "aten::stack"))
    return OfJoin(node, Is(node, "aten::stack"));
  if (node->inputs().empty()) return std::nullopt;
  if (Is(node, "fbgemm::jagged_to_padded_dense")) return OfPadded(node);
  const auto first = Of(node->input(0));
  if (Is(node, "recsys_ops::linear")) {
    const auto width = NumberOf(node->input(2));
    if (!first || first->dims.size() != 1 || !width) return std::nullopt;
    return RowShape{{*width}, first->batch, first->num_items};
  }
  if (Is(node, "recsys_ops::dot_interaction")) {
    const auto second = Of(node->input(1));
    if (!first || !second || first->num_items > 0) return std::nullopt;
    Unite(first->batch, second->batch);
    const std::int64_t num = second->dims[0] + 1;
    return RowShape{{first->dims[0] + num * (num - 1) / 2}, first->batch};
  }
  if (IsBroadcast(node)) return OfNumbers(node);
  if (!first) return std::nullopt;
  if (IsUnary(node) || (Is(node, "aten::softmax") && node->input(2)->mustBeNone())) return first;
  if (Is(node, "aten::layer_norm")) return first;
  if (Is(node, "aten::expand")) return OfExpanded(node, *first);
  if (first->num_items > 0) return OfSummedItems(node, *first);
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

/// Finds the -1 in reshape(x, [B, -1, D]) of rows, where B is the number of such rows.
void RowShapes::Infer(const Node* node, std::vector<std::optional<std::int64_t>>* sizes) const {
  const auto from = Of(node->input(0));
  const Node* const list = node->input(1)->node();
  if (!from || from->num_items > 0 || sizes->empty() || !Is(list, "prim::ListConstruct")) return;
  const Node* const first = list->input(0)->node();
  if (!Is(first, "aten::size") || first->inputs().size() != 2 || !IsNumber(first->input(1), 0)) {
    return;
  }
  const auto counted = Of(first->input(0));
  const auto inferred = std::find(sizes->begin() + 1, sizes->end(), -1);
  if (!counted || counted->batch != from->batch || counted->num_items > 0 ||
      inferred == sizes->end()) {
    return;
  }
  std::int64_t rest = 1;
  for (auto size = sizes->begin() + 1; size != sizes->end(); ++size) {
    if (size == inferred) continue;
    if (!*size || **size < 1 || **size > from->width()) return;
    rest *= **size;
    if (rest > from->width()) return;
  }
  if (from->width() % rest == 0) *inferred = from->width() / rest;
}

/// reshape(x, [-1, ...]) of rows, and reshape(x, [B, N]) of anything.
std::optional<RowShape> RowShapes::OfReshape(const Node* node) {
  auto sizes = NumbersOf(node->input(1));
  RowShape shape;
  Infer(node, &sizes);
  for (std::size_t i = 1; i < sizes.size(); ++i) {
    if (!sizes[i] || *sizes[i] < 0) return std::nullopt;
    shape.dims.push_back(*sizes[i]);
  }
  if (sizes.empty()) return std::nullopt;
  const auto from = Of(node->input(0));
  if (from && from->num_items > 0) return OfReshapedItems(node, *from);
  if (from && from->width() == shape.width() && (sizes[0] == -1 || !sizes[0])) {
    shape.batch = from->batch;
    return shape;
  }
  if (from && sizes[0] == -1 && sizes.size() == 3 && sizes[2] == from->width()) {
    const auto history = histories_.find(Root(from->batch));
    if (history == histories_.end() || sizes[1] != history->second.second) return std::nullopt;
    return RowShape{{*sizes[2]}, from->batch, *sizes[1]};
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
    if (is_stack && shape->num_items > 0) return std::nullopt;
    if (is_stack) dims.insert(dims.begin(), 1);
    if (is_first) {
      joined = {dims, shape->batch, shape->num_items};
      continue;
    }
    if (joined.dims.size() != dims.size() || joined.num_items != shape->num_items ||
        !std::equal(dims.begin() + 1, dims.end(), joined.dims.begin() + 1)) {
      return std::nullopt;
    }
    joined.dims[0] += dims[0];
    Unite(joined.batch, shape->batch);
  }
  if (joined.dims.empty()) return std::nullopt;
  return joined;
}

/// Views of rows other than reshape, and sums and norms over their first dimension.
std::optional<RowShape> RowShapes::OfPart(const Node* node) const {
  RowShape shape = *Of(node->input(0));
  std::vector<std::int64_t>& dims = shape.dims;
  if (Is(node, "aten::flatten")) {
    if (IsNumber(node->input(1), 0) && IsNumber(node->input(2), -1) && shape.width() == 1) {
      dims.clear();
      return shape;
    }
    if (!IsNumber(node->input(1), 1) || !IsNumber(node->input(2), -1)) return std::nullopt;
    dims = {shape.width()};
    return shape;
  }
  const auto rank = static_cast<std::int64_t>(dims.size());
  if (const auto reduced = ReductionOf(node)) {
    const std::int64_t at = reduced->dim < 0 ? reduced->dim + rank + 1 : reduced->dim;
    if (at != 1 || rank == 0 || (rank > 1 && !Is(node, "aten::sum"))) return std::nullopt;
    if (reduced->is_kept) {
      dims[0] = 1;
    } else {
      dims.erase(dims.begin());
    }
    return shape;
  }
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
    if (shape->batch != found->batch || shape->num_items != found->num_items || !dims) {
      return std::nullopt;
    }
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

/// Vectors of zeros behind the ends of jagged ones: [B, H, D].
std::optional<RowShape> RowShapes::OfPadded(const Node* node) {
  const auto dim = DimOfVectors(node->input(0));
  const auto num_items = NumbersOf(node->input(2));
  if (!dim || num_items.size() != 1 || !num_items[0] || *num_items[0] < 1) return std::nullopt;
  const Node* const list = node->input(1)->node();
  if (!Is(list, "prim::ListConstruct") || list->inputs().size() != 1) return std::nullopt;
  const Node* offsets = list->input(0)->node();
  if (Is(offsets, "aten::clamp")) offsets = offsets->input(0)->node();
  if (!Is(offsets, "fbgemm::asynchronous_complete_cumsum")) return std::nullopt;
  const int batch = BatchOf(SourceOfPart(offsets->input(0)));
  if (*num_items[0] == 1) return RowShape{{1, *dim}, batch};
  return RowShape{{*dim}, ItemsOf(batch, *num_items[0]), *num_items[0]};
}

/// expand(x, [-1, H, -1]): the same vector for each item.
std::optional<RowShape> RowShapes::OfExpanded(const Node* node, const RowShape& from) {
  const auto sizes = NumbersOf(node->input(1));
  if (from.num_items > 0 || from.dims.size() != 2 || from.dims[0] != 1 || sizes.size() != 3 ||
      sizes[0] != -1 || !sizes[1] || *sizes[1] < 2 ||
      (sizes[2] != -1 && sizes[2] != from.dims[1])) {
    return std::nullopt;
  }
  return RowShape{{from.dims[1]}, ItemsOf(from.batch, *sizes[1]), *sizes[1]};
}

/// reshape(x, [-1, D]) of items: D numbers of each, or all H * D of a history.
std::optional<RowShape> RowShapes::OfReshapedItems(const Node* node, const RowShape& from) {
  const auto sizes = NumbersOf(node->input(1));
  const auto history = histories_.find(Root(from.batch));
  if (sizes.size() != 2 || (sizes[0] && sizes[0] != -1) || history == histories_.end()) {
    return std::nullopt;
  }
  if (sizes[1] == from.width() && sizes[0] == -1) return RowShape{{*sizes[1]}, from.batch};
  if (sizes[1] == from.width() * from.num_items) {
    return RowShape{{*sizes[1]}, Root(history->second.first)};
  }
  return std::nullopt;
}

/// sum(x, 1) of items: over those of a history.
std::optional<RowShape> RowShapes::OfSummedItems(const Node* node, const RowShape& from) const {
  const auto history = histories_.find(Root(from.batch));
  if (!IsSumOverSecond(node) || history == histories_.end()) return std::nullopt;
  return RowShape{from.dims, Root(history->second.first)};
}

int RowShapes::BatchOf(const SizeSource& source) {
  const auto [found, is_new] = batches_.emplace(source, static_cast<int>(roots_.size()));
  if (is_new) roots_.push_back(found->second);
  return Root(found->second);
}

int RowShapes::ItemsOf(int batch, std::int64_t num_items) {
  const std::pair<int, std::int64_t> history{Root(batch), num_items};
  const auto [found, is_new] = items_.emplace(history, static_cast<int>(roots_.size()));
  if (is_new) {
    roots_.push_back(found->second);
    histories_.emplace(found->second, history);
  }
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
