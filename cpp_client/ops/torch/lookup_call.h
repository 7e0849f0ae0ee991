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

/// The tensors of a lookup.
struct LookupTensors {
  /// uint8, and int64 [S, kSlotColumns].
  const at::Tensor &rows, &slots;
  /// int64 [S * B] and [N].
  const at::Tensor &lengths, &values;
  /// float32 [N]; undefined if each ID counts once.
  at::Tensor weights;
  std::int64_t pooling = 0;
  /// Columns of the output.
  std::int64_t width = 0;
};

/// One call of a lookup, checked, with what kernels read of it. Not to be moved.
class LookupCall {
 public:
  /// Throws for tensors that do not fit, and for rows outside of `rows`.
  explicit LookupCall(const LookupTensors& tensors);
  LookupCall(const LookupCall&) = delete;
  LookupCall& operator=(const LookupCall&) = delete;

  const Lookup& lookup() const { return lookup_; }
  /// Throws for the ID at a position, which is out of range.
  [[noreturn]] void ThrowWrongId(std::int64_t position) const;

 private:
  void ReadSlots(const LookupTensors& tensors);
  void ReadOffsets(const at::Tensor& lengths, std::int64_t num_ids);

  at::Tensor ids_, weights_;
  std::vector<Slot> slots_;
  std::vector<std::int64_t> offsets_;
  Lookup lookup_;
};

}  // namespace recsys::ops

#endif  // RECSYS_OPS_TORCH_LOOKUP_CALL_H_
