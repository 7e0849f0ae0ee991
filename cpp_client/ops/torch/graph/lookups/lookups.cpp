#include "ops/torch/graph/lookups/lookups.h"

#include <torch/csrc/jit/passes/dead_code_elimination.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "ops/torch/graph/lookups/picked_features.h"
#include "ops/torch/graph/nodes.h"

namespace recsys::ops {

using torch::jit::Node;
using torch::jit::Value;

std::string LookupExchange::WhyNot(const Node* node) const {
  const auto rows = TensorOf(node->input(0));
  for (const std::size_t constant : {3, 4, 5}) {
    if (!rows || !TensorOf(node->input(constant))) return "its tables are computed";
  }
  if (!rows->device().is_cpu()) return "its rows are on " + rows->device().str();
  if (!IsNumber(node->input(16), 0) || !IsNumber(node->input(19), 1)) {
    return "its outputs are not float32";
  }
  if (!Is(node->input(13)->node(), "fbgemm::asynchronous_complete_cumsum")) {
    return "its offsets are computed";
  }
  return {};
}

/// Returns where the IDs come from, and sets the weights of the batch there.
TracedIds LookupExchange::IdsOf(Node* node, std::int64_t num_slots, Value** weights) {
  Value* const values = node->input(12);
  Value* const lengths = node->input(13)->node()->input(0);
  const bool is_pooled = !IsNumber(node->input(14), 2);
  // Rows of IDs are in the order of the IDs.
  TracedIds ids =
      is_pooled ? TraceIds(values, lengths, num_slots) : TraceChecked(values, lengths, num_slots);
  *weights = node->input(15);
  if ((*weights)->mustBeNone()) return ids;
  *weights = TraceWeights(node->input(15), lengths, ids);
  if (*weights != nullptr) return ids;
  *weights = node->input(15);
  return TraceChecked(values, lengths, num_slots);
}

std::string LookupExchange::Exchange(Node* node) {
  const std::string reason = WhyNot(node);
  if (!reason.empty()) return reason;
  const at::Tensor offsets = TensorOf(node->input(3))->to(at::kLong);
  const at::Tensor types = TensorOf(node->input(4))->to(at::kLong);
  const at::Tensor ends = TensorOf(node->input(5))->to(at::kLong);
  const std::int64_t num_slots = offsets.numel();
  Value* weights = nullptr;
  const TracedIds ids = IdsOf(node, num_slots, &weights);
  const at::Tensor starts = ends.slice(0, 0, num_slots);
  const at::Tensor dims = ends.slice(0, 1) - starts;
  const bool is_pooled = !IsNumber(node->input(14), 2);
  std::vector<std::int64_t> num_rows, moduli, last_ids, features;
  for (const TracedFeature& of : ids.features) {
    num_rows.push_back(of.num_rows);
    moduli.push_back(of.modulus);
    last_ids.push_back(of.last_id);
    features.push_back(of.feature);
    if (of.check != nullptr) checked_[of.check].insert(of.checked_as);
  }
  const auto column = [](const std::vector<std::int64_t>& numbers) {
    return at::tensor(numbers, at::kLong);
  };
  const at::Tensor slots = at::stack({offsets, column(num_rows), types, dims,
                                      is_pooled ? starts : at::zeros_like(starts), column(moduli),
                                      column(last_ids), column(features)},
                                     1)
                               .contiguous();
  read_.emplace(ids.values, ids.lengths);
  const std::int64_t width = is_pooled ? *NumberOf(node->input(6)) : dims[0].item<std::int64_t>();
  const torch::jit::WithInsertPoint here(node);
  Value* const output = Call(
      graph_.get(), "recsys_ops::lookup",
      {node->input(0), graph_->insertConstant(slots), ids.lengths, ids.values, weights,
       node->input(14), graph_->insertConstant(width), graph_->insertConstant(ids.num_features)});
  node->output()->replaceAllUsesWith(output);
  node->destroy();
  return {};
}

void LookupExchange::RemoveChecks() {
  torch::jit::EliminateDeadCode(graph_);
  for (const auto& [check, features] : checked_) {
    if (IsDoneByLookups(check)) check->destroy();
  }
  torch::jit::EliminateDeadCode(graph_);
  // What one of them reads may be made of what another one checks.
  for (bool is_found = true; is_found;) {
    auto nodes = graph_->nodes();
    const auto done = std::find_if(nodes.begin(), nodes.end(), [this](Node* node) {
      return IsCheck(node) && IsStructureDone(node);
    });
    is_found = done != nodes.end();
    if (is_found) done->destroy();
    torch::jit::EliminateDeadCode(graph_);
  }
}

/// Whether lookups check all features, and nothing else reads the checked IDs.
bool LookupExchange::IsDoneByLookups(Node* check) const {
  const auto num_features = static_cast<std::size_t>(TensorOf(check->input(0))->numel());
  return checked_.at(check).size() == num_features && check->input(1)->uses().size() == 1;
}

/// Whether a node checks lengths against a number of IDs, by zeros in their place, and lookups read
/// both, but nothing else does.
bool LookupExchange::IsStructureDone(Node* check) const {
  Node* const zeros = check->input(1)->node();
  if (!Is(zeros, "aten::zeros_like")) return false;
  Value* const values = zeros->input(0);
  Bags bags{check->input(2)->node()->input(0)};
  std::pair<Value*, Value*> read{values, bags.lengths};
  if (const auto picked = PickedIds(values)) {
    bags.num_features = static_cast<std::int64_t>(picked->features.size());
    if (FeaturesOfBags(bags, picked->from) != picked->features) return false;
    read = {picked->ids, picked->from.lengths};
  }
  return read_.count(read) > 0 &&
         std::all_of(values->uses().begin(), values->uses().end(), [](const auto& use) {
           return Is(use.user, "aten::zeros_like") || Is(use.user, "recsys_ops::lookup");
         });
}

}  // namespace recsys::ops
