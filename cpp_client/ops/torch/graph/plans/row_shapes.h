#ifndef RECSYS_OPS_TORCH_GRAPH_PLANS_ROW_SHAPES_H_
#define RECSYS_OPS_TORCH_GRAPH_PLANS_ROW_SHAPES_H_

#include <torch/csrc/jit/ir/ir.h>

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "ops/torch/graph/batch_sizes.h"

namespace recsys::ops {

/// A tensor [B, ...] of which row b depends on row b of others alone. Of a history [B, H, ...] each
/// of the B * H items is a row.
struct RowShape {
  /// Those of a row.
  std::vector<std::int64_t> dims;
  /// Which batch the rows are: equal numbers have the same rows.
  int batch = 0;
  /// H of histories; 0 for other tensors.
  std::int64_t num_items = 0;

  std::int64_t width() const;
};

/// The shapes of a frozen graph's values, as far as its constants tell them. Linear layers,
/// interactions and lookups must be those of recsys_ops.
class RowShapes {
 public:
  explicit RowShapes(torch::jit::Graph* graph);

  /// Returns nothing if it is not known.
  std::optional<RowShape> Of(const torch::jit::Value* value) const;

 private:
  /// Those of a plan that is there already.
  void AddOutputsOf(const torch::jit::Node* plan, at::ArrayRef<torch::jit::Value*> outputs);
  std::optional<RowShape> ShapeOf(torch::jit::Node* node);
  std::optional<RowShape> OfReshape(const torch::jit::Node* node);
  void Infer(const torch::jit::Node* node, std::vector<std::optional<std::int64_t>>* sizes) const;
  std::optional<RowShape> OfReshapedItems(const torch::jit::Node* node, const RowShape& from);
  std::optional<RowShape> OfJoin(torch::jit::Node* node, bool is_stack);
  std::optional<RowShape> OfPart(const torch::jit::Node* node) const;
  std::optional<RowShape> OfNumbers(const torch::jit::Node* node) const;
  std::optional<RowShape> OfPadded(const torch::jit::Node* node);
  std::optional<RowShape> OfExpanded(const torch::jit::Node* node, const RowShape& from);
  std::optional<RowShape> OfSummedItems(const torch::jit::Node* node, const RowShape& from) const;
  int BatchOf(const SizeSource& source);
  /// The rows are the items of histories of `num_items` each.
  int ItemsOf(int batch, std::int64_t num_items);
  int Root(int batch) const;
  /// The two have the same B: they stand side by side.
  void Unite(int a, int b);

  std::map<const torch::jit::Value*, RowShape> shapes_;
  std::map<SizeSource, int> batches_;
  /// By the batch and the length of histories, their items; and back.
  std::map<std::pair<int, std::int64_t>, int> items_;
  std::map<int, std::pair<int, std::int64_t>> histories_;
  std::vector<int> roots_;
};

/// Returns which dimension a call means, counted from the front; nothing if it is computed.
std::optional<std::int64_t> DimOf(const torch::jit::Value* dim, const RowShape& shape);

/// Returns where in a row the numbers of a view begin; nothing if a node is no view of its first
/// input. `from`: the shape of that.
std::optional<std::int64_t> OffsetOfView(const torch::jit::Node* node, const RowShape& from);

}  // namespace recsys::ops

#endif  // RECSYS_OPS_TORCH_GRAPH_PLANS_ROW_SHAPES_H_
