#include "ops/torch/graph/lookup_ids.h"

#include <limits>

#include "ops/torch/graph/nodes.h"

namespace recsys::ops {
namespace {

using torch::jit::Node;
using torch::jit::Value;

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

/// Reads what stands before one lookup.
class Reading {
 public:
  Reading(Node* lookup, std::int64_t num_slots)
      : lookup_(lookup), lengths_(lookup->input(13)->node()->input(0)), num_slots_(num_slots) {}

  /// Returns false if the IDs are made in another way.
  bool Run(LookupIds* ids) const {
    Value* value = lookup_->input(12);
    Node* const check = CheckOf(value);
    if (check == nullptr) return false;
    ids->num_rows = *TensorOf(check->input(0));
    ids->moduli = at::zeros({num_slots_}, at::kLong);
    ids->last_ids = at::full({num_slots_}, -1, at::kLong);
    if (Is(value->node(), "aten::minimum")) {
      const auto limits = OfSlots(value->node()->input(1));
      if (!limits) return false;
      ids->last_ids = *limits;
      value = value->node()->input(0);
    }
    Value* hashed = nullptr;
    if (Is(value->node(), "aten::where")) {
      Node* const rest = value->node()->input(1)->node();
      const auto is_hashed = OfSlots(value->node()->input(0));
      if (!is_hashed || !Is(rest, "aten::remainder")) return false;
      const auto moduli = OfSlots(rest->input(1));
      if (!moduli) return false;
      ids->moduli = *moduli * *is_hashed;
      hashed = rest->input(0);
      value = value->node()->input(2);
    }
    const Node* const threshold = value->node();
    if (!Is(threshold, "aten::threshold") || !IsNumber(threshold->input(1), -1) ||
        !IsNumber(threshold->input(2), kMost)) {
      return false;
    }
    ids->values = const_cast<Value*>(threshold->input(0));
    if (hashed != nullptr && hashed != ids->values) return false;
    ids->checks.push_back(check);
    for (Node* const structure : StructureChecks(ids->values)) ids->checks.push_back(structure);
    return true;
  }

 private:
  /// Returns the only other user of IDs, if it is a check of each against its table.
  Node* CheckOf(const Value* ids) const {
    if (ids->uses().size() != 2) return nullptr;
    Node* const first = ids->uses()[0].user;
    Node* const check = first == lookup_ ? ids->uses()[1].user : first;
    if (!IsCheck(check) || check->input(1) != ids || check->input(2) != lookup_->input(13)) {
      return nullptr;
    }
    const auto num_rows = TensorOf(check->input(0));
    return num_rows && num_rows->numel() == num_slots_ ? check : nullptr;
  }

  /// The mode is FATAL: anything wrong raises.
  static bool IsCheck(const Node* node) {
    return Is(node, "fbgemm::bounds_check_indices") && IsNumber(node->input(3), 0);
  }

  /// Returns a constant of which each ID takes its slot's item.
  std::optional<at::Tensor> OfSlots(const Value* value) const {
    const Node* const node = value->node();
    if (!Is(node, "aten::index_select") || !IsNumber(node->input(1), 0)) return std::nullopt;
    const auto items = TensorOf(node->input(0));
    const Node* const slots = node->input(2)->node();
    if (!items || items->numel() != num_slots_ || !Is(slots, "aten::repeat_interleave") ||
        slots->inputs().size() != 4) {
      return std::nullopt;
    }
    const auto order = TensorOf(slots->input(0));
    const Node* const counts = slots->input(1)->node();
    if (!order || !at::equal(*order, at::arange(num_slots_)) || !Is(counts, "aten::sum")) {
      return std::nullopt;
    }
    const Node* const by_slot = counts->input(0)->node();
    if (!Is(by_slot, "aten::view") || by_slot->input(0) != lengths_) return std::nullopt;
    return items;
  }

  /// Returns the checks of lengths against a number of IDs, by zeros in their place.
  std::vector<Node*> StructureChecks(const Value* ids) const {
    std::vector<Node*> checks;
    for (const auto& use : ids->uses()) {
      if (!Is(use.user, "aten::zeros_like")) continue;
      for (const auto& of : use.user->output()->uses()) {
        Node* const sums = IsCheck(of.user) ? of.user->input(2)->node() : nullptr;
        if (sums != nullptr && Is(sums, "fbgemm::asynchronous_complete_cumsum") &&
            sums->input(0) == lengths_) {
          checks.push_back(of.user);
        }
      }
    }
    return checks;
  }

  Node* const lookup_;
  Value* const lengths_;
  const std::int64_t num_slots_;
};

}  // namespace

LookupIds IdsOf(Node* lookup, std::int64_t num_slots) {
  LookupIds ids;
  if (Reading(lookup, num_slots).Run(&ids)) return ids;
  ids.values = lookup->input(12);
  ids.num_rows = at::full({num_slots}, -1, at::kLong);
  ids.moduli = at::zeros({num_slots}, at::kLong);
  ids.last_ids = at::full({num_slots}, -1, at::kLong);
  ids.checks.clear();
  return ids;
}

}  // namespace recsys::ops
