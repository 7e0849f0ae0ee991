#include "ops/torch/lookup_call.h"

#include <algorithm>
#include <cstdlib>

namespace recsys::ops {
namespace {

/// Larger tables would overflow sums of bytes.
constexpr std::int64_t kMostRows = std::int64_t{1} << 40, kMostDim = 1 << 20;

/// Writes the sums of the first 0, 1, ... lengths. Returns whether they are known to be right:
/// the lengths are so small that no sum overflows, and the last sum is the number of IDs.
bool SumSmall(const std::int64_t* lengths, std::int64_t count, std::int64_t num_ids,
              std::int64_t* to) {
  constexpr std::int64_t kSmall = std::int64_t{1} << 31;
  std::uint64_t sum = 0, all_bits = 0;
  *to++ = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto length = static_cast<std::uint64_t>(lengths[i]);
    all_bits |= length;
    sum += length;
    *to++ = static_cast<std::int64_t>(sum);
  }
  return all_bits < kSmall && count < kSmall && sum == static_cast<std::uint64_t>(num_ids);
}

}  // namespace

LookupTables::LookupTables(const at::Tensor& rows, const at::Tensor& slots,
                           const LookupSizes& sizes)
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
    TORCH_CHECK_VALUE(
        type >= 0 && type <= 4 && dim >= 1 && dim <= sizes.width && dim <= kMostDim &&
            column >= 0 && column <= sizes.width - dim && offset >= 0 && offset <= rows.numel() &&
            at[5] >= -kMostRows && at[7] >= 0 && at[7] < sizes.num_features,
        "slots: got a type, dim, column, offset, modulus or feature out of its range");
    slot.type = static_cast<RowType>(type);
    const std::int64_t row_bytes = RowBytes(slot.type, dim), bytes = rows.numel() - offset;
    TORCH_CHECK_VALUE(num_rows < 0 || (num_rows <= kMostRows && num_rows * row_bytes <= bytes),
                      "slots: got ", num_rows, " rows of ", row_bytes, " bytes, expected at most ",
                      bytes / row_bytes);
    slot.rows = rows.const_data_ptr<std::uint8_t>() + offset;
    slot.num_rows = static_cast<std::uint64_t>(num_rows < 0 ? bytes / row_bytes : num_rows);
    slot.dim = dim;
    slot.column = column;
    slot.modulus = std::abs(at[5]);
    slot.is_mixed = at[5] < 0;
    slot.last_id = static_cast<std::uint64_t>(at[6]);
    slot.feature = at[7];
    at += kSlotColumns;
  }
}

BatchIds::BatchIds(const at::Tensor& lengths, const at::Tensor& values, const at::Tensor& weights,
                   std::int64_t num_features) {
  TORCH_CHECK_VALUE(num_features >= 1, "num_features: got ", num_features, ", expected at least 1");
  const bool is_whole = lengths.scalar_type() == at::kLong || lengths.scalar_type() == at::kInt;
  TORCH_CHECK_TYPE(
      is_whole && values.scalar_type() == at::kLong && lengths.dim() == 1 && values.dim() == 1,
      "lengths, values: got ", lengths.scalar_type(), ' ', lengths.sizes(), " and ",
      values.scalar_type(), ' ', values.sizes(), ", expected int64 [F * B] and [N]");
  TORCH_CHECK_VALUE(lengths.numel() % num_features == 0, "lengths: got ", lengths.numel(),
                    ", expected a multiple of ", num_features);
  num_bags_ = lengths.numel() / num_features;
  if (weights.defined()) {
    TORCH_CHECK_TYPE(
        weights.is_floating_point() && weights.dim() == 1 && weights.numel() == values.numel(),
        "weights: got ", weights.scalar_type(), ' ', weights.sizes(),
        ", expected floating-point numbers [", values.numel(), ']');
    weights_ = weights.to(at::kFloat).contiguous();
  }
  ids_ = values.contiguous();
  const bool is_read = lengths.scalar_type() == at::kLong && lengths.is_contiguous();
  ReadOffsets(is_read ? lengths : lengths.to(at::kLong).contiguous());
}

void BatchIds::ReadOffsets(const at::Tensor& lengths) {
  const std::int64_t num_ids = ids_.numel(), count = lengths.numel();
  const std::int64_t* const from = lengths.const_data_ptr<std::int64_t>();
  offsets_.resize(static_cast<std::size_t>(count) + 1);
  if (SumSmall(from, count, num_ids, offsets_.data())) return;
  std::int64_t sum = 0;
  std::int64_t* to = offsets_.data();
  *to++ = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    TORCH_CHECK(from[i] >= 0 && from[i] <= num_ids - sum, "lengths: got ", from[i], " at position ",
                i, " for ", num_ids, " values, expected their sum to be equal");
    *to++ = sum += from[i];
  }
  TORCH_CHECK(sum == num_ids, "lengths: got a sum of ", sum, " for ", num_ids,
              " values, expected them to be equal");
}

void BatchIds::BindTo(Lookup* lookup) const {
  lookup->num_bags = num_bags_;
  lookup->ids = ids_.const_data_ptr<std::int64_t>();
  lookup->offsets = offsets_.data();
  lookup->weights = weights_.defined() ? weights_.const_data_ptr<float>() : nullptr;
}

void BatchIds::ThrowWrongId(const Lookup& lookup, std::int64_t position) const {
  const std::int64_t id = lookup.ids[position];
  const std::int64_t bag =
      std::upper_bound(offsets_.begin(), offsets_.end(), position) - offsets_.begin() - 1;
  const std::int64_t feature = bag / num_bags_;
  const Slot* const wrong =
      std::find_if(lookup.slots, lookup.slots + lookup.num_slots, [&](const Slot& slot) {
        return slot.feature == feature && RowOfId(slot, id) >= slot.num_rows;
      });
  TORCH_CHECK(false, "values: got ID ", id, " for feature ", feature, ", expected 0 <= ID < ",
              wrong->num_rows);
}

}  // namespace recsys::ops
