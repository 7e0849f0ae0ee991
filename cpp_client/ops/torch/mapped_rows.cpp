#include "ops/torch/mapped_rows.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "format/slots.h"

namespace recsys::ops {
namespace {

// IDs whose buckets are fetched from memory at a time.
constexpr std::int64_t kAtOnce = 16;

at::Tensor Int64(const at::Tensor& tensor, const char* name, std::int64_t num_dims) {
  TORCH_CHECK_VALUE(tensor.scalar_type() == at::kLong && tensor.dim() == num_dims, name, ": got ",
                    tensor.scalar_type(), ' ', tensor.sizes(), ", expected int64 of ", num_dims,
                    " dimensions");
  return tensor.contiguous();
}

}  // namespace

at::Tensor MappedRows(const at::Tensor& slots, const at::Tensor& masks, const at::Tensor& starts,
                      const at::Tensor& tables, const at::Tensor& ids) {
  TORCH_CHECK_VALUE(slots.dim() == 2 && slots.size(1) == kBucketNumbers, "slots: got ",
                    slots.sizes(), ", expected [Q, 8]");
  const at::Tensor held = Int64(slots, "slots", 2);
  const at::Tensor mask_of = Int64(masks, "masks", 1), start_of = Int64(starts, "starts", 1);
  const at::Tensor table_of = Int64(tables, "tables", 1), raw_ids = Int64(ids, "ids", 1);
  const std::int64_t num_tables = mask_of.numel(), num = raw_ids.numel();
  TORCH_CHECK_VALUE(start_of.numel() == num_tables && table_of.numel() == num, "tables: got ",
                    table_of.sizes(), " and starts ", start_of.sizes(), ", expected [", num,
                    "] and [", num_tables, ']');
  const auto* const mask = mask_of.const_data_ptr<std::int64_t>();
  const auto* const start = start_of.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < num_tables; ++i) {
    // IDs that are not mapped look into the first two buckets.
    TORCH_CHECK_VALUE(mask[i] >= 0 && start[i] >= 0 && start[i] < slots.size(0) &&
                          std::max<std::int64_t>(mask[i], 1) < slots.size(0) - start[i] &&
                          ((mask[i] + 1) & mask[i]) == 0,
                      "masks: got ", mask[i], " from bucket ", start[i], " on, expected some of ",
                      slots.size(0));
  }
  const auto* const buckets = held.const_data_ptr<std::int64_t>();
  const auto* const table = table_of.const_data_ptr<std::int64_t>();
  const auto* const id = raw_ids.const_data_ptr<std::int64_t>();
  at::Tensor rows = at::empty({num}, at::kLong);
  auto* const row = rows.mutable_data_ptr<std::int64_t>();
  std::array<std::pair<const std::int64_t*, const std::int64_t*>, kAtOnce> places;
  for (std::int64_t first = 0; first < num; first += kAtOnce) {
    const std::int64_t count = std::min(kAtOnce, num - first);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t of = table[first + i];
      TORCH_CHECK_VALUE(of >= 0 && of < num_tables, "tables: got ", of, ", expected 0 to ",
                        num_tables - 1);
      const auto both = BucketsOf(id[first + i], static_cast<std::uint64_t>(mask[of]));
      auto& place = places[static_cast<std::size_t>(i)];
      place = {buckets + (start[of] + both.first) * kBucketNumbers,
               buckets + (start[of] + both.second) * kBucketNumbers};
      __builtin_prefetch(place.first);
      __builtin_prefetch(place.second);
    }
    for (std::int64_t i = 0; i < count; ++i) {
      const auto& place = places[static_cast<std::size_t>(i)];
      row[first + i] = RowIn(place.first, place.second, id[first + i]);
    }
  }
  return rows;
}

}  // namespace recsys::ops
