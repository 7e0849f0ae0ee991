#ifndef RECSYS_OPS_TORCH_LOOKUP_CALL_H_
#define RECSYS_OPS_TORCH_LOOKUP_CALL_H_

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "ops/kernels/kernels.h"

namespace recsys::ops {

/// Columns of the tensor that describes a lookup's slots: offset of the rows, number of rows (-1:
/// all that fit), type, width, first column of the output, modulus (negative where IDs are mixed
/// first), last ID, feature.
constexpr std::int64_t kSlotColumns = 8;

/// What a lookup's slots must stay within: columns of the output, and features of the batch.
struct LookupSizes {
  std::int64_t width = 1;
  std::int64_t num_features = 1;
};

/// The tables of a lookup, checked.
class LookupTables {
 public:
  /// `rows`: uint8; `slots`: int64 [S, kSlotColumns]. Throws for tensors that do not fit, and for
  /// rows outside of `rows`.
  LookupTables(const at::Tensor& rows, const at::Tensor& slots, const LookupSizes& sizes);

  const std::vector<Slot>& slots() const { return slots_; }

 private:
  at::Tensor rows_;
  std::vector<Slot> slots_;
};

/// The IDs of a batch, checked: a bag for each feature and row. Not to be moved.
class BatchIds {
 public:
  /// `lengths`: int64 [F * B], feature by feature; `values`: int64 [N]; `weights`: numbers [N], or
  /// undefined if each ID counts once. Throws for tensors that do not fit.
  BatchIds(const at::Tensor& lengths, const at::Tensor& values, const at::Tensor& weights,
           std::int64_t num_features);
  BatchIds(const BatchIds&) = delete;
  BatchIds& operator=(const BatchIds&) = delete;

  /// B.
  std::int64_t num_bags() const { return num_bags_; }
  /// Makes a lookup read these IDs, which must outlive it.
  void BindTo(Lookup* lookup) const;
  /// Returns those of one of the features.
  const std::int64_t* ids() const { return ids_.const_data_ptr<std::int64_t>(); }
  const std::int64_t* OffsetsOfFeature(std::int64_t feature) const {
    return offsets_.data() + feature * num_bags_;
  }
  /// Throws for the ID at a position, which is out of range for a slot of the lookup.
  [[noreturn]] void ThrowWrongId(const Lookup& lookup, std::int64_t position) const;

 private:
  void ReadOffsets(const at::Tensor& lengths);

  at::Tensor ids_, weights_;
  std::int64_t num_bags_ = 0;
  std::vector<std::int64_t> offsets_;
};

}  // namespace recsys::ops

#endif  // RECSYS_OPS_TORCH_LOOKUP_CALL_H_
