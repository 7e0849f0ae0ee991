#ifndef RECSYS_OPS_TORCH_LOOKUP_CALL_H_
#define RECSYS_OPS_TORCH_LOOKUP_CALL_H_

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "ops/kernels/kernels.h"

namespace recsys::ops {

/// Columns of the tensor that describes a lookup's slots: offset of the rows, number of rows (-1:
/// all that fit), type, dim, first column of the output, modulus, last ID.
constexpr std::int64_t kSlotColumns = 7;

/// The tables of a lookup, checked.
class LookupTables {
 public:
  /// `rows`: uint8; `slots`: int64 [S, kSlotColumns]; `width`: columns of the output. Throws for
  /// tensors that do not fit, and for rows outside of `rows`.
  LookupTables(const at::Tensor& rows, const at::Tensor& slots, std::int64_t width);

  const std::vector<Slot>& slots() const { return slots_; }

 private:
  at::Tensor rows_;
  std::vector<Slot> slots_;
};

/// What a call of a lookup takes.
struct LookupInputs {
  /// int64 [S * B] and [N].
  const at::Tensor &lengths, &values;
  /// float32 [N]; undefined if each ID counts once.
  at::Tensor weights;
  std::int64_t pooling = 0;
};

/// One call of a lookup, checked, with what kernels read of it. The tables must outlive it. Not to
/// be moved.
class LookupCall {
 public:
  /// Throws for tensors that do not fit.
  LookupCall(const LookupTables& tables, const LookupInputs& ids);
  LookupCall(const LookupCall&) = delete;
  LookupCall& operator=(const LookupCall&) = delete;

  const Lookup& lookup() const { return lookup_; }
  /// Throws for the ID at a position, which is out of range.
  [[noreturn]] void ThrowWrongId(std::int64_t position) const;

 private:
  void ReadOffsets(const at::Tensor& lengths, std::int64_t num_ids);

  at::Tensor ids_, weights_;
  std::vector<std::int64_t> offsets_;
  Lookup lookup_;
};

}  // namespace recsys::ops

#endif  // RECSYS_OPS_TORCH_LOOKUP_CALL_H_
