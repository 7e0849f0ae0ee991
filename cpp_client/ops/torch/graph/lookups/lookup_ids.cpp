#include "ops/torch/graph/lookups/lookup_ids.h"

#include <limits>
#include <optional>

#include "ops/torch/graph/lookups/picked_features.h"
#include "ops/torch/graph/nodes.h"

namespace recsys::ops {
namespace {

using torch::jit::Node;
using torch::jit::Value;

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

/// Returns x of `x ^ (x >> 33 & ones)`: the shift is that of an unsigned number; null for others.
Value* Unshifted(const Value* value) {
  constexpr std::int64_t kOnes = (std::int64_t{1} << 31) - 1;
  const Node* const sum = value->node();
  if (!Is(sum, "aten::bitwise_xor")) return nullptr;
  const Node* const masked = sum->input(1)->node();
  if (!Is(masked, "aten::bitwise_and") || !IsNumber(masked->input(1), kOnes)) return nullptr;
  const Node* const shift = masked->input(0)->node();
  const bool is_shift = Is(shift, "aten::bitwise_right_shift") && IsNumber(shift->input(1), 33) &&
                        shift->input(0) == sum->input(0);
  return is_shift ? shift->input(0) : nullptr;
}

/// Returns the IDs that recsys.ops.mixed_ids mixes to a value (MixedId of kernels.h); null for
/// others.
Value* Unmixed(const Value* value) {
  const Node* const node = value->node();
  if (!Is(node, "aten::bitwise_and") || !IsNumber(node->input(1), kMost)) return nullptr;
  Value* found = Unshifted(node->input(0));
  for (const std::uint64_t factor : {0xC4CEB9FE1A85EC53, 0xFF51AFD7ED558CCD}) {
    if (found == nullptr || !Is(found->node(), "aten::mul") ||
        !IsNumber(found->node()->input(1), static_cast<std::int64_t>(factor))) {
      return nullptr;
    }
    found = Unshifted(found->node()->input(0));
  }
  return found;
}

/// What a check and the policies before it do with IDs, by feature.
struct Checked {
  Value* values = nullptr;
  Value* lengths = nullptr;
  std::vector<TracedFeature> features;
};

/// Reads what stands between IDs and a check of them.
class CheckReading {
 public:
  CheckReading(Node* check, Value* checked)
      : check_(check),
        checked_(checked),
        lengths_(check->input(2)->node()->input(0)),
        num_rows_(*TensorOf(check->input(0))) {}

  std::optional<Checked> Run() const {
    Value* value = checked_;
    at::Tensor moduli = at::zeros_like(num_rows_), last_ids = at::full_like(num_rows_, -1);
    if (Is(value->node(), "aten::minimum")) {
      const auto limits = OfFeatures(value->node()->input(1));
      if (!limits) return std::nullopt;
      last_ids = *limits;
      value = value->node()->input(0);
    }
    Value* hashed = nullptr;
    if (Is(value->node(), "aten::where")) {
      Node* const rest = value->node()->input(1)->node();
      const auto is_hashed = OfFeatures(value->node()->input(0));
      if (!is_hashed || !Is(rest, "aten::remainder")) return std::nullopt;
      const auto of_features = OfFeatures(rest->input(1));
      if (!of_features) return std::nullopt;
      moduli = *of_features * *is_hashed;
      hashed = rest->input(0);
      if (Value* const mixed = Unmixed(hashed)) {
        moduli = -moduli;
        hashed = mixed;
      } else if (Is(hashed->node(), "aten::where")) {
        const Node* const either = hashed->node();
        const auto is_mixed = OfFeatures(either->input(0));
        hashed = either->input(2);
        if (!is_mixed || Unmixed(either->input(1)) != hashed) return std::nullopt;
        moduli = at::where(*is_mixed, -moduli, moduli);
      }
      value = value->node()->input(2);
    }
    Node* const threshold = value->node();
    if (!Is(threshold, "aten::threshold") || !IsNumber(threshold->input(1), -1) ||
        !IsNumber(threshold->input(2), kMost)) {
      return std::nullopt;
    }
    Checked found{threshold->input(0), lengths_, {}};
    if (hashed != nullptr && hashed != found.values) return std::nullopt;
    for (std::int64_t i = 0; i < num_rows_.numel(); ++i) {
      found.features.push_back({i, num_rows_[i].item<std::int64_t>(),
                                moduli[i].item<std::int64_t>(), last_ids[i].item<std::int64_t>(),
                                check_, i});
    }
    return found;
  }

 private:
  /// Returns a constant of which each ID takes its feature's item.
  std::optional<at::Tensor> OfFeatures(const Value* value) const {
    const Node* const node = value->node();
    const std::int64_t num_features = num_rows_.numel();
    if (!Is(node, "aten::index_select") || !IsNumber(node->input(1), 0)) return std::nullopt;
    const auto items = TensorOf(node->input(0));
    const Node* const features = node->input(2)->node();
    if (!items || items->numel() != num_features || !Is(features, "aten::repeat_interleave") ||
        features->inputs().size() != 4) {
      return std::nullopt;
    }
    const auto order = TensorOf(features->input(0));
    const Node* const counts = features->input(1)->node();
    if (!order || !at::equal(*order, at::arange(num_features)) || !Is(counts, "aten::sum")) {
      return std::nullopt;
    }
    const Node* const by_feature = counts->input(0)->node();
    if (!Is(by_feature, "aten::view") || by_feature->input(0) != lengths_) return std::nullopt;
    return items;
  }

  Node* const check_;
  Value* const checked_;
  Value* const lengths_;
  const at::Tensor num_rows_;
};

/// Returns the check of IDs against the rows of their tables, and what stands before it.
std::optional<Checked> CheckedBy(Value* values) {
  for (const auto& use : values->uses()) {
    Node* const check = use.user;
    if (!IsCheck(check) || check->input(1) != values) continue;
    const auto num_rows = TensorOf(check->input(0));
    if (!num_rows || num_rows->scalar_type() != at::kLong || num_rows->dim() != 1) continue;
    if (auto found = CheckReading(check, values).Run()) return found;
  }
  return std::nullopt;
}

TracedIds Trace(Value* values, Value* lengths, std::int64_t num_features, bool is_picked) {
  TracedIds found{values, lengths, num_features, {}};
  found.features.resize(static_cast<std::size_t>(num_features));
  for (std::int64_t i = 0; i < num_features; ++i) {
    found.features[static_cast<std::size_t>(i)].feature = i;
  }
  for (bool is_checked = false;;) {
    const auto picked = is_picked ? PickedIds(found.values) : std::nullopt;
    if (picked) {
      // The lengths must have come the same way.
      const auto bags = FeaturesOfBags({found.lengths, found.num_features}, picked->from);
      if (bags != picked->features) return found;
      for (TracedFeature& feature : found.features) {
        feature.feature = picked->features[static_cast<std::size_t>(feature.feature)];
      }
      found.values = picked->ids;
      found.lengths = picked->from.lengths;
      found.num_features = picked->from.num_features;
      continue;
    }
    const auto checked = is_checked ? std::nullopt : CheckedBy(found.values);
    if (!checked || checked->lengths != found.lengths ||
        static_cast<std::int64_t>(checked->features.size()) != found.num_features) {
      return found;
    }
    for (TracedFeature& feature : found.features) {
      feature = checked->features[static_cast<std::size_t>(feature.feature)];
    }
    found.values = checked->values;
    is_checked = true;
  }
}

/// Returns the input of a graph of which weights are a view in float32, as a lookup takes any; the
/// weights themselves if they are no such view.
Value* AsGiven(Value* weights) {
  Value* given = weights;
  for (;;) {
    Node* const node = given->node();
    if (Is(node, "prim::Param")) return given;
    const bool is_same = Is(node, "aten::contiguous") || Is(node, "aten::view") ||
                         (Is(node, "aten::to") && node->inputs().size() > 1 &&
                          IsNumber(node->input(1), static_cast<std::int64_t>(at::kFloat)));
    if (!is_same) return weights;
    given = node->input(0);
  }
}

std::vector<std::int64_t> FeaturesOf(const TracedIds& ids) {
  std::vector<std::int64_t> features;
  for (const TracedFeature& feature : ids.features) features.push_back(feature.feature);
  return features;
}

}  // namespace

// The mode is FATAL.
bool IsCheck(const Node* node) {
  return Is(node, "fbgemm::bounds_check_indices") && IsNumber(node->input(3), 0) &&
         Is(node->input(2)->node(), "fbgemm::asynchronous_complete_cumsum");
}

TracedIds TraceIds(Value* values, Value* lengths, std::int64_t num_features) {
  return Trace(values, lengths, num_features, true);
}

TracedIds TraceChecked(Value* values, Value* lengths, std::int64_t num_features) {
  return Trace(values, lengths, num_features, false);
}

Value* TraceWeights(Value* weights, Value* lengths, const TracedIds& ids) {
  const auto num_features = static_cast<std::int64_t>(ids.features.size());
  const TracedIds found = Trace(weights, lengths, num_features, true);
  const bool is_same = found.lengths == ids.lengths && found.num_features == ids.num_features &&
                       FeaturesOf(found) == FeaturesOf(ids);
  return is_same ? AsGiven(found.values) : nullptr;
}

}  // namespace recsys::ops
