#include "ops/torch/graph/direct.h"

#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/ir/ir.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <stdexcept>

#include "ops/torch/graph/nodes.h"

namespace recsys::ops {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

namespace {

/// Returns the only node of a kind; null if there are none or several.
const Node* OnlyNode(const Graph& graph, const char* name) {
  const Node* found = nullptr;
  for (const Node* node : graph.nodes()) {
    if (!Is(node, name)) continue;
    if (found != nullptr) return nullptr;
    found = node;
  }
  return found;
}

std::optional<std::size_t> PositionOf(const Value* value, at::ArrayRef<const Value*> among) {
  const auto found = std::find(among.begin(), among.end(), value);
  if (found == among.end()) return std::nullopt;
  return static_cast<std::size_t>(found - among.begin());
}

}  // namespace

std::optional<DirectGraph::Parts> DirectGraph::PartsOf(const torch::jit::Module& frozen) {
  Parts parts;
  if (!Read(*frozen.get_method("forward").graph(), &parts)) return std::nullopt;
  return parts;
}

std::shared_ptr<DirectGraph> DirectGraph::Of(const torch::jit::Module& frozen) {
  const auto parts = PartsOf(frozen);
  return parts ? std::make_shared<DirectGraph>(*parts) : nullptr;
}

bool DirectGraph::Read(const Graph& graph, Parts* parts) {
  const Node* const plan = OnlyNode(graph, "recsys_ops::plan");
  const Node* const unpack = OnlyNode(graph, "prim::ListUnpack");
  const Node* const dict = OnlyNode(graph, "prim::DictConstruct");
  if (plan == nullptr || unpack == nullptr || dict == nullptr) return false;
  const Node* const inputs = plan->input(1)->node();
  for (const Node* node : graph.nodes()) {
    if (node != plan && node != unpack && node != dict && node != inputs &&
        !Is(node, "prim::Constant")) {
      return false;
    }
  }
  if (!Is(inputs, "prim::ListConstruct") || unpack->input() != plan->output() ||
      graph.outputs().size() != 1 || graph.outputs()[0] != dict->output()) {
    return false;
  }
  // The first input is the module.
  const at::ArrayRef<const Value*> of_graph = graph.inputs().slice(1);
  parts->num_inputs = of_graph.size();
  for (const Value* input : inputs->inputs()) {
    const auto at = PositionOf(input, of_graph);
    if (!at) return false;
    parts->inputs.push_back(*at);
  }
  for (std::size_t i = 0; i + 1 < dict->inputs().size(); i += 2) {
    const auto name = torch::jit::toIValue(dict->input(i));
    const auto at = PositionOf(dict->input(i + 1), unpack->outputs());
    if (!name || !name->isString() || !at) return false;
    parts->outputs.emplace_back(name->toStringRef(), *at);
  }
  const auto numbers = TensorOf(plan->input(0));
  const auto constants = torch::jit::toIValue(plan->input(2));
  const auto rows_of = NumberOf(plan->input(3)), per_row = NumberOf(plan->input(4));
  const auto widths = torch::jit::toIValue(plan->input(5));
  if (!numbers || !constants || !rows_of || !per_row || !widths) return false;
  parts->plan = *numbers;
  parts->constants = constants->toTensorVector();
  parts->rows_of = *rows_of;
  parts->per_row = *per_row;
  parts->widths = widths->toIntVector();
  return true;
}

DirectGraph::DirectGraph(const Parts& parts)
    : plan_(parts.plan, parts.constants, static_cast<std::int64_t>(parts.inputs.size()),
            {parts.rows_of, parts.per_row, parts.widths}),
      num_inputs_(parts.num_inputs),
      inputs_(parts.inputs),
      outputs_(parts.outputs) {}

DirectGraph::Outputs DirectGraph::Run(const std::vector<at::Tensor>& inputs) const try {
  TORCH_CHECK(inputs.size() == num_inputs_, "inputs: got ", inputs.size(), " tensors, expected ",
              num_inputs_);
  const c10::InferenceMode mode;
  // As the operator appears in profiles.
  RECORD_FUNCTION("recsys_ops::plan", c10::ArrayRef<const c10::IValue>{});
  std::vector<at::Tensor> taken;
  taken.reserve(inputs_.size());
  for (const std::size_t at : inputs_) {
    const at::Tensor& input = inputs[at];
    TORCH_CHECK(input.defined() && input.is_cpu() && input.layout() == at::kStrided, "inputs: got ",
                input.toString(), " at position ", at, ", expected a tensor in host memory");
    taken.push_back(input);
  }
  const std::vector<at::Tensor> found = plan_.Run(taken);
  Outputs outputs;
  outputs.reserve(outputs_.size());
  for (const auto& [name, at] : outputs_) outputs.emplace_back(name, found[at]);
  return outputs;
} catch (const c10::Error& error) {
  // One type for all errors of graphs, as TorchScript's interpreter has it; without the stack.
  throw std::runtime_error(error.what_without_backtrace());
}

}  // namespace recsys::ops
