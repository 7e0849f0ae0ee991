#include "ops/torch/graph/lookups/picked_features.h"

#include <numeric>

#include "ops/torch/graph/batch_sizes.h"
#include "ops/torch/graph/nodes.h"

namespace recsys::ops {
namespace {

using torch::jit::Node;
using torch::jit::Value;
using Features = std::vector<std::int64_t>;

/// Returns `begin` to `end`, without the latter.
Features Range(std::int64_t begin, std::int64_t end) {
  Features features(static_cast<std::size_t>(end - begin));
  std::iota(features.begin(), features.end(), begin);
  return features;
}

/// Returns the bags of view(lengths, [F, B]).
std::optional<Bags> ByFeature(const Value* matrix) {
  Node* const node = const_cast<Node*>(matrix->node());
  if (!Is(node, "aten::view")) return std::nullopt;
  const auto sizes = NumbersOf(node->input(1));
  if (sizes.size() != 2 || !sizes[0] || *sizes[0] < 1) return std::nullopt;
  return Bags{node->input(0), *sizes[0]};
}

/// A permutation of features.
struct Permuted {
  Node* node = nullptr;
  Bags of;
  Features order;
};

std::optional<Permuted> PermutedBy(Node* node) {
  if (!Is(node, "fbgemm::permute_2D_sparse_data")) return std::nullopt;
  const auto order = TensorOf(node->input(0));
  const auto of = ByFeature(node->input(1));
  if (!order || !of || order->dim() != 1 || order->numel() < 1) return std::nullopt;
  const at::Tensor wide = order->to(at::kLong).contiguous();
  const auto* const numbers = wide.const_data_ptr<std::int64_t>();
  Permuted found{node, *of, {numbers, numbers + wide.numel()}};
  for (const std::int64_t feature : found.order) {
    if (feature < 0 || feature >= of->num_features) return std::nullopt;
  }
  return found;
}

/// Returns a value that is declared optional, behind the assertion that it is there.
Value* Unwrapped(Value* value) {
  Node* const node = value->node();
  const bool is_asserted =
      Is(node, "aten::_unwrap_optional") || Is(node, "prim::unchecked_unwrap_optional");
  return is_asserted ? node->input() : value;
}

/// Where IDs are split, in features.
struct SplitEnds {
  Bags of;
  Features ends;
};

/// index_select(cumsum(sum(view(lengths, [F, B]), 1), 0), 0, last features)
std::optional<SplitEnds> EndsOfFeatures(const Node* node) {
  if (!Is(node, "aten::index_select") || !IsNumber(node->input(1), 0)) return std::nullopt;
  const auto last = TensorOf(node->input(2));
  const Node* const sums = node->input(0)->node();
  if (!last || last->scalar_type() != at::kLong || !Is(sums, "aten::cumsum") ||
      !IsNumber(sums->input(1), 0) || !IsSumOverSecond(sums->input(0)->node())) {
    return std::nullopt;
  }
  const auto of = ByFeature(sums->input(0)->node()->input(0));
  if (!of) return std::nullopt;
  SplitEnds found{*of, {}};
  for (std::int64_t i = 0; i < last->numel(); ++i) {
    found.ends.push_back((*last)[i].item<std::int64_t>() + 1);
  }
  return found;
}

/// cumsum(stack([sum(lengths[: k * B]), sum(lengths[k * B : l * B]), ...]), 0)
std::optional<SplitEnds> EndsOfParts(const Node* node) {
  if (!Is(node, "aten::cumsum") || !IsNumber(node->input(1), 0)) return std::nullopt;
  Node* const stack = node->input(0)->node();
  if (!Is(stack, "aten::stack")) return std::nullopt;
  SplitEnds found;
  for (const Value* sum : ListOf(stack)) {
    const Node* const of = sum->node();
    if (!Is(of, "aten::sum") || of->inputs().size() != 2) return std::nullopt;
    const auto part = SlicedBagsOf(of->input(0));
    Value* const whole = part ? of->input(0)->node()->input(0) : nullptr;
    const std::int64_t begin = found.ends.empty() ? 0 : found.ends.back();
    if (!part || part->of.first != whole || part->begin != begin ||
        (found.of.lengths != nullptr &&
         (found.of.lengths != whole || found.of.num_features != part->of.second))) {
      return std::nullopt;
    }
    found.of = {whole, part->of.second};
    found.ends.push_back(part->end);
  }
  if (found.ends.empty()) return std::nullopt;
  return found;
}

/// A part of tensor_split(ids, ends).
std::optional<Picked> SplitOff(const Node* node) {
  if (!Is(node, "aten::__getitem__")) return std::nullopt;
  Node* const split = node->input(0)->node();
  const auto at = NumberOf(node->input(1));
  if (!at || !Is(split, "aten::tensor_split") || !IsNumber(split->input(2), 0)) {
    return std::nullopt;
  }
  const Node* const ends = split->input(1)->node();
  auto found = EndsOfFeatures(ends);
  if (!found) found = EndsOfParts(ends);
  if (!found) return std::nullopt;
  Features bounds = found->ends;
  bounds.insert(bounds.begin(), 0);
  bounds.push_back(found->of.num_features);
  const auto part = static_cast<std::size_t>(*at);
  if (*at < 0 || part + 1 >= bounds.size() || bounds[part] > bounds[part + 1] ||
      bounds[part + 1] > found->of.num_features) {
    return std::nullopt;
  }
  return Picked{split->input(0), found->of, Range(bounds[part], bounds[part + 1])};
}

Bags OriginOf(Bags bags);

/// Returns what lengths are picked from by one operator; nothing for others.
std::optional<Picked> PickedBags(const Bags& bags) {
  Node* const node = bags.lengths->node();
  if (Is(node, "aten::view")) {
    const auto sizes = NumbersOf(node->input(1));
    const auto permuted = PermutedBy(node->input(0)->node());
    if (!permuted || node->input(0)->offset() != 0 || sizes.size() != 1 || sizes[0] != -1) {
      return std::nullopt;
    }
    return Picked{nullptr, permuted->of, permuted->order};
  }
  const auto part = SlicedBagsOf(bags.lengths);
  if (!part) return std::nullopt;
  Bags whole{node->input(0), part->of.second};
  const bool is_viewed = Is(whole.lengths->node(), "aten::view");
  if (const auto permuted =
          is_viewed ? PermutedBy(whole.lengths->node()->input(0)->node()) : std::nullopt) {
    whole.num_features = static_cast<std::int64_t>(permuted->order.size());
  } else if (part->of.first != whole.lengths) {
    return std::nullopt;
  }
  // The slice counts rows of a batch, which must be the one that it cuts.
  const Bags counted = OriginOf({const_cast<Value*>(part->of.first), part->of.second});
  const Bags cut = OriginOf(whole);
  if (counted.lengths != cut.lengths || counted.num_features != cut.num_features ||
      part->end > whole.num_features) {
    return std::nullopt;
  }
  return Picked{nullptr, whole, Range(part->begin, part->end)};
}

Bags OriginOf(Bags bags) {
  while (const auto picked = PickedBags(bags)) bags = picked->from;
  return bags;
}

}  // namespace

std::optional<Picked> PickedIds(Value* ids) {
  ids = Unwrapped(ids);
  Node* const node = ids->node();
  if (const auto split = SplitOff(node)) return split;
  const auto permuted = PermutedBy(node);
  // The lengths are its first output; then IDs and weights, which it takes one place further on.
  if (!permuted || ids->offset() < 1 || ids->offset() > 2) return std::nullopt;
  Value* const from = Unwrapped(node->input(ids->offset() + 1));
  return Picked{from, permuted->of, permuted->order};
}

std::optional<Features> FeaturesOfBags(const Bags& bags, const Bags& from) {
  Features features = Range(0, bags.num_features);
  Bags at = bags;
  while (at.lengths != from.lengths) {
    const auto picked = PickedBags(at);
    if (!picked || static_cast<std::int64_t>(picked->features.size()) != at.num_features) {
      return std::nullopt;
    }
    for (std::int64_t& feature : features) {
      feature = picked->features[static_cast<std::size_t>(feature)];
    }
    at = picked->from;
  }
  if (at.num_features != from.num_features) return std::nullopt;
  return features;
}

}  // namespace recsys::ops
