#include "ops/torch/graph/plans/region.h"

#include <torch/csrc/jit/ir/constants.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "ops/torch/graph/nodes.h"
#include "ops/torch/graph/plans/node_steps.h"

namespace recsys::ops {
namespace {

using torch::jit::Node;
using torch::jit::Value;

/// A part of a join: columns of a value.
struct Part {
  Value* value = nullptr;
  std::int64_t offset = 0;
  std::int64_t width = 0;
};

/// Returns the columns that a gather takes, as runs that follow each other; empty for other nodes.
std::vector<Part> RunsOf(Node* node, const RowShapes& shapes) {
  const auto from = shapes.Of(node->input(0));
  const auto columns = TensorOf(node->input(2));
  if (!from || !columns || columns->scalar_type() != at::kLong) return {};
  const std::int64_t each = from->width() / from->dims[0];
  std::vector<Part> runs;
  for (std::int64_t i = 0; i < columns->numel(); ++i) {
    const std::int64_t column = (*columns)[i].item<std::int64_t>();
    if (column < 0 || column >= from->dims[0]) return {};
    if (!runs.empty() && runs.back().offset + runs.back().width == column * each) {
      runs.back().width += each;
    } else {
      runs.push_back({node->input(0), column * each, each});
    }
  }
  return runs;
}

/// Whether something else than a plan for the same rows reads a value, or a view of it.
bool IsReadElsewhere(const Value* value, const RowShapes& shapes) {
  const auto& uses = value->uses();
  return std::any_of(uses.begin(), uses.end(), [&](const auto& use) {
    if (Is(use.user, "prim::ListConstruct")) return IsReadElsewhere(use.user->output(), shapes);
    const NodeKind kind = KindOf(use.user, shapes);
    if (kind == NodeKind::kView) return IsReadElsewhere(use.user->output(), shapes);
    return kind == NodeKind::kOther;
  });
}

class Planning {
 public:
  Planning(const Region& region, const RowShapes& shapes, WeightType dot_type)
      : region_(region), shapes_(shapes), dot_type_(dot_type) {}

  RegionPlan Run() {
    FindProductsAdded();
    PlaceOutputs();
    for (auto node = region_.nodes.rbegin(); node != region_.nodes.rend(); ++node) {
      PlaceParts(*node);
    }
    for (Node* node : region_.nodes) Emit(node);
    for (const auto& [value, place] : copied_outputs_) Copy(place, PlaceOf(value));
    PlaceScratch();
    FindRows();
    return std::move(made_);
  }

 private:
  std::int64_t WidthOf(const Value* value) const { return shapes_.Of(value)->width(); }

  /// Finds products that are only added to something: one step computes both.
  void FindProductsAdded() {
    for (Node* node : region_.nodes) {
      if (!Is(node, "aten::add") || BinaryKindOf(node) != ElementwiseKind::kAdd) continue;
      for (std::size_t i = 0; i < 2; ++i) {
        Node* const product = node->input(i)->node();
        Value* const other = node->input(1 - i);
        if (region_.members.count(product) == 0 || !Is(product, "aten::mul") ||
            WithFactorOf(product) || OnlyUser(product->output()) != node ||
            CountOf(product->input(0), product->input(1), shapes_) != 1 ||
            CountOf(product->output(), other, shapes_) != 1) {
          continue;
        }
        added_[node] = {product, other};
        skipped_.insert(product);
        break;
      }
    }
  }

  /// Outputs are written where they are computed, unless that is a part of something.
  void PlaceOutputs() {
    for (Node* node : region_.nodes) {
      Value* const value = node->output();
      if (!region_.IsOutput(value)) continue;
      const std::int64_t width = WidthOf(value);
      const Place place = WholeBuffer(BufferKind::kOutput, made_.outputs.size(), width);
      made_.outputs.push_back(value);
      made_.widths.push_back(width);
      Value* const root = RootOf(value);
      if (root != nullptr && places_.emplace(root, place).second) continue;
      copied_outputs_.emplace_back(value, place);
    }
  }

  /// Gives the parts of a join or an interaction their places in it.
  void PlaceParts(Node* node) {
    const bool is_dot = Is(node, "recsys_ops::dot_interaction");
    if (!is_dot && KindOf(node, shapes_) != NodeKind::kJoin) return;
    std::int64_t width = WidthOf(node->output());
    if (is_dot) width = WidthOf(node->input(0)) + WidthOf(node->input(1));
    Place whole;
    if (is_dot) {
      whole = Scratch(width);
      vectors_.emplace(node, whole);
    } else {
      whole = places_.emplace(node->output(), Place{-1, 0, width}).first->second;
      if (whole.buffer < 0) places_[node->output()] = whole = Scratch(width);
    }
    std::int64_t column = whole.column;
    for (const Part& part : PartsOf(node)) {
      const Place place{whole.buffer, column, part.width};
      column += part.width;
      Value* const root =
          part.width == WidthOf(part.value) ? RootOf(part.value) : static_cast<Value*>(nullptr);
      if (root != nullptr && places_.emplace(root, place).second) continue;
      copied_parts_[node].emplace_back(part, place);
    }
  }

  std::vector<Part> PartsOf(Node* node) const {
    if (Is(node, "aten::index_select")) return RunsOf(node, shapes_);
    std::vector<Part> parts;
    const auto add = [&](Value* value) { parts.push_back({value, 0, WidthOf(value)}); };
    if (Is(node, "recsys_ops::dot_interaction")) {
      add(node->input(0));
      add(node->input(1));
    } else {
      for (Value* value : ListOf(node)) add(value);
    }
    return parts;
  }

  /// Returns the value of this region of which another one is a view of all columns; null if there
  /// is none, or a step that is computed within another one.
  Value* RootOf(Value* value) const {
    while (region_.Has(value)) {
      const NodeKind kind = KindOf(value->node(), shapes_);
      if (kind != NodeKind::kView) return skipped_.count(value->node()) > 0 ? nullptr : value;
      Value* const from = value->node()->input(0);
      if (!shapes_.Of(from) || WidthOf(from) != WidthOf(value)) return nullptr;
      value = from;
    }
    return nullptr;
  }

  Place PlaceOf(Value* value) {
    const auto found = places_.find(value);
    if (found != places_.end()) return found->second;
    Node* const node = value->node();
    if (region_.Has(value) && KindOf(node, shapes_) == NodeKind::kView &&
        shapes_.Of(node->input(0))) {
      Place place = PlaceOf(node->input(0));
      place.column += *OffsetOfView(node, *shapes_.Of(node->input(0)));
      place.width = WidthOf(value);
      return place;
    }
    const Place place = region_.Has(value) ? Scratch(WidthOf(value))
                                           : WholeBuffer(BufferKind::kInput,
                                                         InputOf(Unshaped(value)), WidthOf(value));
    places_.emplace(value, place);
    return place;
  }

  /// reshape(x, [B, N]): plans take the rows of x by themselves.
  Value* Unshaped(Value* value) const {
    Node* const node = value->node();
    return Is(node, "aten::reshape") && !shapes_.Of(node->input(0)) ? node->input(0) : value;
  }

  void Emit(Node* node) {
    for (const auto& [part, place] : copied_parts_[node]) {
      Place from = PlaceOf(part.value);
      from.column += part.offset;
      from.width = part.width;
      Copy(place, from);
    }
    if (KindOf(node, shapes_) != NodeKind::kStep || skipped_.count(node) > 0) return;
    const Place out = PlaceOf(node->output());
    if (Is(node, "aten::layer_norm")) return LayerNorm(node, out);
    Step step;
    step.out = out;
    if (Is(node, "recsys_ops::lookup")) {
      step.kind = StepKind::kLookup;
      step.index = LookupOf(node);
    } else if (Is(node, "recsys_ops::linear")) {
      step.kind = StepKind::kLinear;
      step.a = PlaceOf(node->input(0));
      step.index = ConstantOf(*TensorOf(node->input(1)));
      const std::string name = torch::jit::toIValue(node->input(3))->toStringRef();
      step.extra = name == "relu" ? 1 : name == "sigmoid" ? 2 : 0;
    } else if (Is(node, "recsys_ops::dot_interaction")) {
      const std::int64_t dim = WidthOf(node->input(0));
      step.kind = StepKind::kDot;
      step.a = vectors_.at(node);
      step.extra = dim;
      step.index = static_cast<std::int64_t>(dot_type_);
      Copy({out.buffer, out.column, dim}, {step.a.buffer, step.a.column, dim});
      step.out = {out.buffer, out.column + dim, out.width - dim};
    } else {
      SetElementwise(node, &step);
    }
    made_.plan.steps.push_back(step);
  }

  void SetElementwise(Node* node, Step* step) {
    step->kind = StepKind::kElementwise;
    step->extra = 1;
    const auto added = added_.find(node);
    if (added != added_.end()) {
      const auto& [product, other] = added->second;
      step->index = static_cast<std::int64_t>(ElementwiseKind::kMultiplyAdd);
      step->a = PlaceOf(product->input(0));
      step->b = PlaceOf(product->input(1));
      step->c = PlaceOf(other);
      return;
    }
    if (const auto with = WithFactorOf(node)) {
      step->index = static_cast<std::int64_t>(with->kind);
      step->a = PlaceOf(node->input(0));
      std::memcpy(&step->extra, &with->factor, sizeof(with->factor));
      return;
    }
    if (const auto kind = BinaryKindOf(node)) {
      const std::size_t first = *FirstOf(node, shapes_);
      Value *const a = node->input(first), *const b = node->input(1 - first);
      step->index = static_cast<std::int64_t>(*kind);
      step->a = PlaceOf(a);
      step->b = PlaceOf(b);
      step->extra = CountOf(a, b, shapes_);
      return;
    }
    step->index = static_cast<std::int64_t>(*UnaryKindOf(node));
    step->a = PlaceOf(node->input(0));
    if (ReductionOf(node)) step->extra = shapes_.Of(node->input(0))->dims[0];
  }

  /// Standardizes each vector of a row, and lets weights and biases follow.
  void LayerNorm(Node* node, const Place& out) {
    const std::int64_t num_vectors = NumNormalized(node, shapes_), dim = out.width / num_vectors;
    const float least = *FloatOf(node->input(4));
    const auto constant = [&](std::size_t at) {
      return node->input(at)->mustBeNone()
                 ? Place{}
                 : WholeBuffer(BufferKind::kConstant, ConstantOf(*TensorOf(node->input(at))), dim);
    };
    const Place weight = constant(2), bias = constant(3), from = PlaceOf(node->input(0));
    for (std::int64_t i = 0; i < num_vectors; ++i) {
      const Place to{out.buffer, out.column + i * dim, dim};
      Step step{StepKind::kElementwise, to, {from.buffer, from.column + i * dim, dim}, {}, {}};
      step.index = static_cast<std::int64_t>(ElementwiseKind::kStandardize);
      std::memcpy(&step.extra, &least, sizeof(least));
      made_.plan.steps.push_back(step);
      if (weight.width == 0 && bias.width == 0) continue;
      const ElementwiseKind kind = weight.width == 0 ? ElementwiseKind::kAdd
                                   : bias.width == 0 ? ElementwiseKind::kMultiply
                                                     : ElementwiseKind::kMultiplyAdd;
      const Place& first = weight.width == 0 ? bias : weight;
      made_.plan.steps.push_back({StepKind::kElementwise, to, to, first,
                                  weight.width == 0 ? Place{} : bias,
                                  static_cast<std::int64_t>(kind), 1});
    }
  }

  void Copy(const Place& to, const Place& from) {
    Step step;
    step.out = to;
    step.a = from;
    step.index = static_cast<std::int64_t>(ElementwiseKind::kCopy);
    step.extra = 1;
    made_.plan.steps.push_back(step);
  }

  std::int64_t LookupOf(Node* node) {
    LookupSource source;
    source.rows = ConstantOf(*TensorOf(node->input(0)));
    source.slots = ConstantOf(*TensorOf(node->input(1)));
    source.lengths = InputOf(node->input(2));
    source.values = InputOf(node->input(3));
    Value* const weights = node->input(4);
    source.weights = weights->mustBeNone() ? -1 : InputOf(weights);
    source.pooling = *NumberOf(node->input(5));
    source.num_features = *NumberOf(node->input(7));
    made_.plan.lookups.push_back(source);
    return static_cast<std::int64_t>(made_.plan.lookups.size()) - 1;
  }

  std::int64_t ConstantOf(const at::Tensor& tensor) {
    for (std::size_t i = 0; i < made_.constants.size(); ++i) {
      if (made_.constants[i].is_same(tensor)) return static_cast<std::int64_t>(i);
    }
    made_.constants.push_back(tensor);
    return static_cast<std::int64_t>(made_.constants.size()) - 1;
  }

  std::int64_t InputOf(Value* value) {
    const auto found = std::find(made_.inputs.begin(), made_.inputs.end(), value);
    if (found == made_.inputs.end()) {
      made_.inputs.push_back(value);
      return static_cast<std::int64_t>(made_.inputs.size()) - 1;
    }
    return found - made_.inputs.begin();
  }

  Place Scratch(std::int64_t width) { return WholeBuffer(BufferKind::kScratch, 0, width); }

  template <typename Index>
  Place WholeBuffer(BufferKind kind, Index index, std::int64_t width) {
    made_.plan.buffers.push_back({kind, static_cast<std::int64_t>(index), width});
    return {static_cast<std::int64_t>(made_.plan.buffers.size()) - 1, 0, width};
  }

  /// Gives scratch buffers memory: two share it if no step needs both.
  void PlaceScratch() {
    struct Used {
      std::int64_t first = -1, last = -1;
    };
    std::vector<Buffer>& buffers = made_.plan.buffers;
    std::vector<Used> used(buffers.size());
    for (std::size_t i = 0; i < made_.plan.steps.size(); ++i) {
      const Step& step = made_.plan.steps[i];
      for (const Place& place : {step.out, step.a, step.b, step.c}) {
        if (place.width == 0) continue;
        Used& of = used[static_cast<std::size_t>(place.buffer)];
        if (of.first < 0) of.first = static_cast<std::int64_t>(i);
        of.last = static_cast<std::int64_t>(i);
      }
    }
    std::vector<std::size_t> placed;
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      if (buffers[i].kind != BufferKind::kScratch || used[i].first < 0) continue;
      // Behind those that are used at the same time and would overlap, one after the other.
      std::int64_t at = 0;
      for (bool has_moved = true; has_moved;) {
        has_moved = false;
        for (const std::size_t other : placed) {
          const std::int64_t begin = buffers[other].index;
          const std::int64_t end = begin + ScratchWidth(buffers[other].width);
          const bool is_shared =
              used[i].first <= used[other].last && used[other].first <= used[i].last;
          if (is_shared && at < end && begin < at + ScratchWidth(buffers[i].width)) {
            at = end;
            has_moved = true;
          }
        }
      }
      buffers[i].index = at;
      placed.push_back(i);
    }
  }

  /// Finds an input that tells the number of rows.
  void FindRows() {
    for (const LookupSource& lookup : made_.plan.lookups) {
      made_.rows_of = lookup.lengths;
      made_.per_row = lookup.num_features;
      return;
    }
    for (const Buffer& buffer : made_.plan.buffers) {
      if (buffer.kind != BufferKind::kInput) continue;
      made_.rows_of = buffer.index;
      made_.per_row = buffer.width;
      return;
    }
  }

  const Region& region_;
  const RowShapes& shapes_;
  const WeightType dot_type_;
  RegionPlan made_;
  std::map<const Value*, Place> places_;
  /// What an interaction multiplies.
  std::map<const Node*, Place> vectors_;
  std::map<const Node*, std::vector<std::pair<Part, Place>>> copied_parts_;
  std::vector<std::pair<Value*, Place>> copied_outputs_;
  /// Of a sum, the product in it and the other operand.
  std::map<const Node*, std::pair<Node*, Value*>> added_;
  std::set<const Node*> skipped_;
};

}  // namespace

NodeKind KindOf(Node* node, const RowShapes& shapes) {
  if (node->outputs().size() != 1) return NodeKind::kOther;
  const auto shape = shapes.Of(node->output());
  if (!shape) return NodeKind::kOther;
  if (Is(node, "aten::cat") || Is(node, "aten::stack")) return NodeKind::kJoin;
  if (Is(node, "aten::index_select")) {
    const bool is_of_columns = IsNumber(node->input(1), 1) && !RunsOf(node, shapes).empty();
    return is_of_columns ? NodeKind::kJoin : NodeKind::kOther;
  }
  if (IsStep(node, shapes)) return NodeKind::kStep;
  const auto from = node->inputs().empty() ? std::nullopt : shapes.Of(node->input(0));
  // A history's items side by side are other rows.
  const bool has_same_rows = from && from->batch == shape->batch;
  return has_same_rows && OffsetOfView(node, *from) ? NodeKind::kView : NodeKind::kOther;
}

bool Region::IsOutput(const Value* value) const {
  return std::any_of(value->uses().begin(), value->uses().end(), [this](const auto& use) {
    // A list belongs to the node that takes it.
    if (!Is(use.user, "prim::ListConstruct")) return members.count(use.user) == 0;
    const auto& uses = use.user->output()->uses();
    return std::any_of(uses.begin(), uses.end(),
                       [this](const auto& of) { return members.count(of.user) == 0; });
  });
}

std::vector<Region> RegionsOf(torch::jit::Graph* graph, const RowShapes& shapes,
                              const std::set<const Node*>& done) {
  std::map<int, Region> regions;
  for (Node* node : graph->block()->nodes()) {
    const auto shape = node->outputs().size() == 1 ? shapes.Of(node->output()) : std::nullopt;
    if (shape) regions[shape->batch];
  }
  std::vector<Region> found;
  for (auto& [batch, region] : regions) {
    // Nodes behind the region that are not of it.
    std::set<const Node*> behind;
    for (Node* node : graph->block()->nodes()) {
      if (!IsPure(node)) {
        // Nothing is moved past it: what follows is another region.
        if (!region.nodes.empty()) found.push_back(std::exchange(region, {}));
        behind.clear();
        continue;
      }
      const auto& inputs = node->inputs();
      const bool is_behind = std::any_of(inputs.begin(), inputs.end(), [&](const Value* value) {
        return behind.count(value->node()) > 0;
      });
      // A list belongs to the node that takes it.
      const bool is_list = Is(node, "prim::ListConstruct");
      const bool reads = std::any_of(inputs.begin(), inputs.end(), [&](const Value* value) {
        const Node* const from = value->node();
        if (!Is(from, "prim::ListConstruct")) return region.Has(value);
        return std::any_of(from->inputs().begin(), from->inputs().end(),
                           [&](const Value* item) { return region.Has(item); });
      });
      const NodeKind kind = KindOf(node, shapes);
      // What the region does not compute may stay outside of it.
      const bool is_left = kind == NodeKind::kView && !region.Has(node->input(0)) &&
                           IsReadElsewhere(node->output(), shapes);
      const bool is_of_region = !is_behind && done.count(node) == 0 && !is_left &&
                                kind != NodeKind::kOther &&
                                shapes.Of(node->output())->batch == batch;
      if (is_of_region) {
        region.nodes.push_back(node);
        region.members.insert(node);
      } else if (is_behind || (reads && !is_list)) {
        behind.insert(node);
      }
    }
    if (!region.nodes.empty()) found.push_back(std::move(region));
  }
  return found;
}

RegionPlan PlanOf(const Region& region, const RowShapes& shapes, WeightType dot_type) {
  return Planning(region, shapes, dot_type).Run();
}

}  // namespace recsys::ops
