#include "ops/torch/graph/plans/planning.h"

#include <torch/csrc/jit/ir/alias_analysis.h>

#include <algorithm>
#include <set>
#include <vector>

#include "ops/torch/graph/nodes.h"
#include "ops/torch/graph/plans/region.h"
#include "ops/torch/graph/plans/row_shapes.h"

namespace recsys::ops {
namespace {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

/// Fewer steps are not worth a plan, but for lookups: each prepares as much by itself.
constexpr std::ptrdiff_t kLeastSteps = 2;

/// Whether a node may write into rows, or into memory that they share.
bool WritesRows(Node* node, const RowShapes& shapes, const torch::jit::AliasDb& aliases) {
  const std::vector<const Value*> written = WrittenTensors(node);
  if (written.empty()) return false;
  const auto is_row = [&](const Value* value) { return shapes.Of(value).has_value(); };
  if (std::any_of(node->inputs().begin(), node->inputs().end(), is_row)) return true;
  for (Node* const other : node->owningGraph()->block()->nodes()) {
    for (const Value* const value : other->outputs()) {
      if (!is_row(value)) continue;
      for (const Value* const at : written) {
        if (aliases.mayContainAlias(const_cast<Value*>(at), const_cast<Value*>(value))) return true;
      }
    }
  }
  return false;
}

/// Whether plans may change what a graph computes: it has blocks, which run again or not at all, or
/// writes into rows.
bool IsUnsafe(const std::shared_ptr<Graph>& graph, const RowShapes& shapes) {
  auto nodes = graph->block()->nodes();
  if (std::any_of(nodes.begin(), nodes.end(), [](Node* node) { return !node->blocks().empty(); })) {
    return true;
  }
  if (std::all_of(nodes.begin(), nodes.end(),
                  [](const Node* node) { return WrittenTensors(node).empty(); })) {
    return false;
  }
  const torch::jit::AliasDb aliases(graph);
  return std::any_of(nodes.begin(), nodes.end(),
                     [&](Node* node) { return WritesRows(node, shapes, aliases); });
}

/// Moves nodes between those of a region that read what it makes behind its last node. All of them
/// are pure: regions end at others.
void MoveReaders(const Region& region) {
  Node* const last = region.nodes.back();
  std::set<const Node*> readers;
  std::vector<Node*> moved;
  for (Node* node = region.nodes.front(); node != last; node = node->next()) {
    if (region.members.count(node) > 0) continue;
    const bool reads = std::any_of(
        node->inputs().begin(), node->inputs().end(),
        [&](const Value* value) { return region.Has(value) || readers.count(value->node()) > 0; });
    if (!reads) continue;
    readers.insert(node);
    moved.push_back(node);
  }
  Node* at = last;
  for (Node* const node : moved) {
    node->moveAfter(at);
    at = node;
  }
}

/// Destroys a region's nodes, which nothing reads any more, and the lists that were made for them.
void Destroy(const Region& region) {
  for (auto node = region.nodes.rbegin(); node != region.nodes.rend(); ++node) {
    std::set<Node*> lists;
    for (Value* const input : (*node)->inputs()) {
      if (Is(input->node(), "prim::ListConstruct")) lists.insert(input->node());
    }
    (*node)->destroy();
    for (Node* const list : lists) {
      if (!list->output()->hasUses()) list->destroy();
    }
  }
}

void Exchange(Graph* graph, const Region& region, const RowShapes& shapes, WeightType dot_type) {
  const RegionPlan made = PlanOf(region, shapes, dot_type);
  MoveReaders(region);
  const torch::jit::WithInsertPoint here(region.nodes.back()->next());
  Node* const inputs = graph->insertNode(graph->createList(c10::TensorType::get(), made.inputs));
  std::vector<std::int64_t> widths = made.widths;
  for (std::size_t i = 0; i < widths.size(); ++i) {
    // Numbers of rows without another dimension.
    if (shapes.Of(made.outputs[i])->dims.empty()) widths[i] = 0;
  }
  const std::vector<std::int64_t> numbers = WritePlan(made.plan);
  Node* const call = graph->insertNode(
      graph->create(c10::Symbol::fromQualString("recsys_ops::plan"),
                    {graph->insertConstant(at::tensor(numbers, at::kLong)), inputs->output(),
                     graph->insertConstant(made.constants), graph->insertConstant(made.rows_of),
                     graph->insertConstant(made.per_row), graph->insertConstant(widths)}));
  call->output()->setType(c10::ListType::ofTensors());
  Node* const outputs =
      graph->insertNode(graph->createListUnpack(call->output(), made.outputs.size()));
  for (std::size_t i = 0; i < made.outputs.size(); ++i) {
    Value* output = outputs->outputs()[i];
    const RowShape of = *shapes.Of(made.outputs[i]);
    if (of.dims.size() > 1 || of.num_items > 0) {
      std::vector<std::int64_t> shape = of.dims;
      if (of.num_items > 0) shape.insert(shape.begin(), of.num_items);
      shape.insert(shape.begin(), -1);
      output = Call(graph, "aten::reshape", {output, graph->insertConstant(shape)});
    }
    made.outputs[i]->replaceAllUsesWith(output);
  }
  Destroy(region);
}

/// Lets quotients take what they divide by as it is: x / expand_as(y, x), which F.normalize writes.
void SkipExpansions(Graph* graph) {
  for (Node* node : graph->block()->nodes()) {
    if (!Is(node, "aten::div") || node->inputs().size() != 2) continue;
    Node* const expansion = node->input(1)->node();
    if (!Is(expansion, "aten::expand_as") || expansion->input(1) != node->input(0)) continue;
    node->replaceInput(1, expansion->input(0));
    if (!expansion->output()->hasUses()) expansion->destroy();
  }
}

/// Lets views of rows infer the number of rows, x.view(x.size(0), 5, 8): what reads it would stand
/// between the rows and their views.
void InferRows(Graph* graph) {
  const RowShapes shapes(graph);
  for (Node* node : graph->block()->nodes()) {
    if (!Is(node, "aten::view") && !Is(node, "aten::reshape")) continue;
    const auto from = shapes.Of(node->input(0)), to = shapes.Of(node->output());
    Node* const list = node->input(1)->node();
    if (!from || !to || from->num_items > 0 || to->num_items > 0 || to->dims.empty() ||
        from->batch != to->batch || !Is(list, "prim::ListConstruct")) {
      continue;
    }
    std::vector<std::int64_t> sizes = to->dims;
    sizes.insert(sizes.begin(), -1);
    const torch::jit::WithInsertPoint here(node);
    node->replaceInput(1, graph->insertConstant(sizes));
    if (list->output()->hasUses()) continue;
    Node* const size = list->input(0)->node();
    list->destroy();
    if (Is(size, "aten::size") && !size->output()->hasUses()) size->destroy();
  }
}

/// Finds a region that is worth a plan. Those that are not are added to `done`.
bool FindRegion(Graph* graph, const RowShapes& shapes, std::set<const Node*>* done, Region* found) {
  for (;;) {
    const std::vector<Region> regions = RegionsOf(graph, shapes, *done);
    if (regions.empty()) return false;
    for (const Region& region : regions) {
      const auto num_steps =
          std::count_if(region.nodes.begin(), region.nodes.end(),
                        [&](Node* node) { return KindOf(node, shapes) == NodeKind::kStep; });
      const bool looks_up =
          std::any_of(region.nodes.begin(), region.nodes.end(),
                      [](const Node* node) { return Is(node, "recsys_ops::lookup"); });
      if (num_steps >= kLeastSteps || looks_up) {
        *found = region;
        return true;
      }
      done->insert(region.nodes.begin(), region.nodes.end());
    }
  }
}

}  // namespace

int PlanRows(const std::shared_ptr<Graph>& graph, WeightType dot_type) {
  SkipExpansions(graph.get());
  InferRows(graph.get());
  int num_nodes = 0;
  std::set<const Node*> done;
  for (;;) {
    // Anew for each region: values are others.
    const RowShapes shapes(graph.get());
    Region region;
    if (IsUnsafe(graph, shapes) || !FindRegion(graph.get(), shapes, &done, &region)) {
      return num_nodes;
    }
    num_nodes += static_cast<int>(region.nodes.size());
    Exchange(graph.get(), region, shapes, dot_type);
  }
}

}  // namespace recsys::ops
