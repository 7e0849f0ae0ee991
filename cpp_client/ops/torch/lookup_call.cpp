#include "ops/torch/lookup_call.h"

#include <algorithm>

namespace recsys::ops {
namespace {

/// Larger tables would overflow sums of bytes.
constexpr std::int64_t kMostRows = std::int64_t{1} << 40, kMostDim = 1 << 20;

}  // namespace

LookupTables::LookupTables(const at::Tensor& rows, const at::Tensor& slots, std::int64_t width)
    : rows_(rows) {
  TORCH_CHECK_TYPE(rows.scalar_type() == at::kByte && rows.dim() == 1 && rows.is_contiguous(),
                   "rows: expected contiguous bytes");
  TORCH_CHECK_TYPE(slots.scalar_type() == at::kLong && slots.dim() == 2 &&
                       slots.size(1) == kSlotColumns && slots.is_contiguous() && slots.size(0) > 0,
                   "slots: got ", slots.scalar_type(), ' ', slots.sizes(), ", expected int64 [S, ",
                   kSlotColumns, ']');
  const std::int64_t* at = slots.const_data_ptr<std::int64_t>();
  slots_.resize(static_cast<std::size_t>(slots.size(0)));
  for (Slot& slot : slots_) {
    const std::int64_t offset = at[0], num_rows = at[1], type = at[2], dim = at[3], column = at[4];
    TORCH_CHECK_VALUE(type >= 0 && type <= 4 && dim >= 1 && dim <= width && dim <= kMostDim &&
                          column >= 0 && column <= width - dim && offset >= 0 &&
                          offset <= rows.numel() && at[5] >= 0,
                      "slots: got a type, dim, column, offset or modulus out of its range");
    slot.type = static_cast<RowType>(type);
    const std::int64_t row_bytes = RowBytes(slot.type, dim), bytes = rows.numel() - offset;
    TORCH_CHECK_VALUE(num_rows < 0 || (num_rows <= kMostRows && num_rows * row_bytes <= bytes),
                      "slots: got ", num_rows, " rows of ", row_bytes, " bytes, expected at most ",
                      bytes / row_bytes);
    slot.rows = rows.const_data_ptr<std::uint8_t>() + offset;
    slot.num_rows = static_cast<std::uint64_t>(num_rows < 0 ? bytes / row_bytes : num_rows);
    slot.dim = dim;
    slot.column = column;
    slot.modulus = at[5];
    slot.last_id = static_cast<std::uint64_t>(at[6]);
    at += kSlotColumns;
  }
}

LookupCall::LookupCall(const LookupTables& tables, const LookupInputs& ids) {
  const auto num_slots = static_cast<std::int64_t>(tables.slots().size());
  const at::Tensor &lengths = ids.lengths, &values = ids.values;
  const bool is_whole = lengths.scalar_type() == at::kLong || lengths.scalar_type() == at::kInt;
  TORCH_CHECK_TYPE(
      is_whole && values.scalar_type() == at::kLong && lengths.dim() == 1 && values.dim() == 1,
      "lengths, values: got ", lengths.scalar_type(), ' ', lengths.sizes(), " and ",
      values.scalar_type(), ' ', values.sizes(), ", expected int64 [S * B] and [N]");
  TORCH_CHECK_VALUE(lengths.numel() % num_slots == 0, "lengths: got ", lengths.numel(),
                    ", expected a multiple of ", num_slots);
  const std::int64_t pooling = ids.pooling;
  TORCH_CHECK_VALUE(pooling >= 0 && pooling <= 2, "pooling: got ", pooling, ", expected 0 to 2");
  if (ids.weights.defined()) {
    const at::Tensor& weights = ids.weights;
    TORCH_CHECK_TYPE(weights.scalar_type() == at::kFloat && weights.dim() == 1 &&
                         weights.numel() == values.numel(),
                     "weights: got ", weights.scalar_type(), ' ', weights.sizes(),
                     ", expected float32 [", values.numel(), ']');
    weights_ = weights.contiguous();
    lookup_.weights = weights_.const_data_ptr<float>();
  }
  ids_ = values.contiguous();
  const bool is_read = lengths.scalar_type() == at::kLong && lengths.is_contiguous();
  ReadOffsets(is_read ? lengths : lengths.to(at::kLong).contiguous(), ids_.numel());
  lookup_.slots = tables.slots().data();
  lookup_.num_slots = num_slots;
  lookup_.num_bags = lengths.numel() / num_slots;
  lookup_.ids = ids_.const_data_ptr<std::int64_t>();
  lookup_.offsets = offsets_.data();
  lookup_.pooling = static_cast<Pooling>(pooling);
}

void LookupCall::ReadOffsets(const at::Tensor& lengths, std::int64_t num_ids) {
  const std::int64_t* const from = lengths.const_data_ptr<std::int64_t>();
  offsets_.resize(static_cast<std::size_t>(lengths.numel()) + 1);
  std::int64_t sum = 0;
  std::int64_t* to = offsets_.data();
  *to++ = 0;
  for (std::int64_t i = 0; i < lengths.numel(); ++i) {
    TORCH_CHECK(from[i] >= 0 && from[i] <= num_ids - sum, "lengths: got ", from[i], " at position ",
                i, " for ", num_ids, " values, expected their sum to be equal");
    *to++ = sum += from[i];
  }
  TORCH_CHECK(sum == num_ids, "lengths: got a sum of ", sum, " for ", num_ids,
              " values, expected them to be equal");
}

void LookupCall::ThrowWrongId(std::int64_t position) const {
  const std::int64_t bag =
      std::upper_bound(offsets_.begin(), offsets_.end(), position) - offsets_.begin() - 1;
  const std::int64_t slot = bag / lookup_.num_bags;
  TORCH_CHECK(false, "values: got ID ", lookup_.ids[position], " in slot ", slot,
              ", expected 0 <= ID < ", lookup_.slots[slot].num_rows);
}

}  // namespace recsys::ops
