#include "ops/torch/graph/direct_parts.h"

#include <torch/csrc/jit/ir/constants.h>

#include <map>
#include <utility>

#include "ops/torch/graph/batch_sizes.h"
#include "ops/torch/graph/nodes.h"

namespace recsys::ops {
namespace {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

class PartsReading {
 public:
  explicit PartsReading(const Graph& graph) : graph_(graph) {}

  std::optional<ProgramParts> Run() {
    // The first input is the module.
    for (const Value* input : graph_.inputs().slice(1)) places_.emplace(input, num_places_++);
    parts_.num_inputs = num_places_;
    for (const Node* node : graph_.nodes()) {
      if (!Read(node)) return std::nullopt;
    }
    const bool is_named = !parts_.outputs.empty() && graph_.outputs().size() == 1 &&
                          graph_.outputs()[0] == dict_ && !parts_.steps.empty();
    if (!is_named) return std::nullopt;
    return std::move(parts_);
  }

 private:
  bool Read(const Node* node) {
    // What others take is read with them: constants, lists, and sizes.
    if (Is(node, "prim::Constant") || Is(node, "prim::ListConstruct")) return true;
    for (const char* name : {"aten::size", "aten::floordiv", "aten::mul", "aten::add"}) {
      if (Is(node, name)) return node->output()->type()->kind() == c10::TypeKind::IntType;
    }
    if (Is(node, "aten::reshape")) return ReadCheck(node);
    if (Is(node, "aten::index_select")) return ReadGather(node);
    if (Is(node, "recsys_ops::plan")) return ReadPlan(node);
    // Its list is unpacked right behind a plan.
    if (Is(node, "prim::ListUnpack")) return ReadOutputs(node);
    return Is(node, "prim::DictConstruct") && ReadNames(node);
  }

  std::optional<std::size_t> PlaceOf(const Value* value) const {
    const auto found = places_.find(value);
    if (found == places_.end()) return std::nullopt;
    return found->second;
  }

  /// A reshape to the shape that an input has already: it only checks that.
  bool ReadCheck(const Node* node) {
    const auto input = PlaceOf(node->input(0));
    const Node* const sizes = node->input(1)->node();
    if (!input || *input >= parts_.num_inputs || !Is(sizes, "prim::ListConstruct") ||
        sizes->inputs().empty() || sizes->inputs().size() > 2) {
      return false;
    }
    const auto rows = RowMultipleOf(sizes->input(0));
    const auto of = rows ? PlaceOf(rows->of.first) : std::nullopt;
    const auto width = sizes->inputs().size() == 2 ? NumberOf(sizes->input(1)) : std::int64_t{0};
    if (!of || *of >= parts_.num_inputs || !width || *width < 0) return false;
    parts_.checks.push_back({*input, *of, rows->of.second, rows->count, *width});
    places_.emplace(node->output(), *input);
    return true;
  }

  bool ReadGather(const Node* node) {
    const auto rows = PlaceOf(node->input(0)), index = PlaceOf(node->input(2));
    if (!rows || !index || !IsNumber(node->input(1), 0)) return false;
    parts_.steps.push_back({std::nullopt, std::nullopt, {*rows, *index}});
    places_.emplace(node->output(), num_places_++);
    return true;
  }

  bool ReadPlan(const Node* node) {
    PlanStep step;
    const Node* const inputs = node->input(1)->node();
    if (!Is(inputs, "prim::ListConstruct")) return false;
    for (const Value* input : inputs->inputs()) {
      const auto place = PlaceOf(input);
      if (!place) return false;
      step.inputs.push_back(*place);
    }
    const auto numbers = TensorOf(node->input(0));
    const auto constants = torch::jit::toIValue(node->input(2));
    const auto rows_of = NumberOf(node->input(3)), per_row = NumberOf(node->input(4));
    const auto widths = torch::jit::toIValue(node->input(5));
    if (!numbers || !constants || !rows_of || !per_row || !widths) return false;
    step.plan = *numbers;
    step.constants = constants->toTensorVector();
    step.rows_of = *rows_of;
    step.per_row = *per_row;
    step.widths = widths->toIntVector();
    first_of_plans_.emplace(node->output(), num_places_);
    num_places_ += step.widths.size();
    parts_.steps.push_back({std::move(step), std::nullopt, {}});
    return true;
  }

  bool ReadOutputs(const Node* node) {
    const auto first = first_of_plans_.find(node->input());
    if (first == first_of_plans_.end()) return false;
    for (std::size_t i = 0; i < node->outputs().size(); ++i) {
      places_.emplace(node->outputs()[i], first->second + i);
    }
    return true;
  }

  bool ReadNames(const Node* node) {
    dict_ = node->output();
    for (std::size_t i = 0; i + 1 < node->inputs().size(); i += 2) {
      const auto name = torch::jit::toIValue(node->input(i));
      const auto place = PlaceOf(node->input(i + 1));
      if (!name || !name->isString() || !place) return false;
      parts_.outputs.emplace_back(name->toStringRef(), *place);
    }
    return true;
  }

  const Graph& graph_;
  ProgramParts parts_;
  std::map<const Value*, std::size_t> places_, first_of_plans_;
  std::size_t num_places_ = 0;
  const Value* dict_ = nullptr;
};

}  // namespace

std::optional<ProgramParts> ProgramPartsOf(const Graph& graph) { return PartsReading(graph).Run(); }

std::shared_ptr<Program> ProgramOf(const torch::jit::Module& frozen) {
  auto parts = ProgramPartsOf(*frozen.get_method("forward").graph());
  return parts ? std::make_shared<Program>(std::move(*parts)) : nullptr;
}

}  // namespace recsys::ops
