#include "ops/torch/graph/batch_sizes.h"

#include "ops/torch/graph/nodes.h"

namespace recsys::ops {
namespace {

using torch::jit::Node;
using torch::jit::Value;

/// Larger multiples of a batch size are not followed.
constexpr std::int64_t kMostTimes = 1 << 16;

/// A number that is so many times B. `of` is empty of zero alone.
struct Times {
  std::optional<SizeSource> of;
  std::int64_t count = 0;
};

std::optional<Times> TimesOf(const Value* number) {
  if (const auto source = SourceOfSize(number)) return Times{source, 1};
  if (IsNumber(number, 0)) return Times{};
  const Node* const node = number->node();
  if (Is(node, "aten::mul")) {
    const bool is_first = NumberOf(node->input(0)).has_value();
    auto times = TimesOf(node->input(is_first ? 1 : 0));
    const auto factor = NumberOf(node->input(is_first ? 0 : 1));
    if (!times || !factor || *factor < 0 || *factor > kMostTimes || times->count > kMostTimes) {
      return std::nullopt;
    }
    times->count *= *factor;
    if (times->count == 0) times->of.reset();
    return times;
  }
  if (!Is(node, "aten::add")) return std::nullopt;
  const auto a = TimesOf(node->input(0)), b = TimesOf(node->input(1));
  if (!a || !b || (a->of && b->of && a->of != b->of)) return std::nullopt;
  return Times{a->of ? a->of : b->of, a->count + b->count};
}

}  // namespace

std::optional<SizeSource> SourceOfSize(const Value* size) {
  const Node* const divided = size->node();
  const bool is_divided = Is(divided, "aten::floordiv");
  const auto per_row = is_divided ? NumberOf(divided->input(1)) : std::int64_t{1};
  const Node* const of = is_divided ? divided->input(0)->node() : divided;
  if (!per_row || *per_row < 1 || !Is(of, "aten::size") || of->inputs().size() != 2 ||
      !IsNumber(of->input(1), 0)) {
    return std::nullopt;
  }
  return SizeSource{of->input(0), *per_row};
}

std::optional<RowMultiple> RowMultipleOf(const Value* number) {
  const auto times = TimesOf(number);
  if (!times || !times->of) return std::nullopt;
  return RowMultiple{*times->of, times->count};
}

std::optional<SlicedBags> SlicedBagsOf(const Value* lengths) {
  const Node* const node = lengths->node();
  if (!Is(node, "aten::slice") || !IsNumber(node->input(1), 0) || !IsNumber(node->input(4), 1)) {
    return std::nullopt;
  }
  const auto start = TimesOf(node->input(2)), end = TimesOf(node->input(3));
  if (!start || !end || !end->of || (start->of && start->of != end->of) ||
      end->count <= start->count) {
    return std::nullopt;
  }
  return SlicedBags{*end->of, start->count, end->count};
}

}  // namespace recsys::ops
