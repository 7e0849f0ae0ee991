#include "ops/torch/crossed.h"

#include <cstddef>
#include <vector>

#include "ops/kernels/kernels.h"

namespace recsys::ops {
namespace {

/// The row of a combination of a feature's several IDs, which its table refuses.
constexpr std::int64_t kSeveral = -1;

/// The bags of F features, feature by feature: bag i has IDs `offsets[i]` to `offsets[i + 1]`.
struct Bags {
  const std::int64_t* ids;
  std::vector<std::int64_t> offsets;
  std::int64_t num_rows;

  std::int64_t LengthOf(std::int64_t bag) const {
    const auto at = static_cast<std::size_t>(bag);
    return offsets[at + 1] - offsets[at];
  }
  std::uint64_t FirstIdOf(std::int64_t bag) const {
    return static_cast<std::uint64_t>(ids[offsets[static_cast<std::size_t>(bag)]]);
  }
};

Bags BagsOf(const at::Tensor& lengths, const at::Tensor& values, std::int64_t num_features) {
  const std::int64_t num_bags = lengths.numel(), num_ids = values.numel();
  TORCH_CHECK_VALUE(num_features >= 1 && num_bags % num_features == 0, "lengths: got ", num_bags,
                    " of ", num_features, " features, expected as many for each");
  Bags bags{values.const_data_ptr<std::int64_t>(), {}, num_bags / num_features};
  bags.offsets.reserve(static_cast<std::size_t>(num_bags) + 1);
  bags.offsets.push_back(0);
  const auto* const length = lengths.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < num_bags; ++i) {
    const std::int64_t start = bags.offsets.back();
    TORCH_CHECK_VALUE(length[i] >= 0 && length[i] <= num_ids - start, "lengths: got ", length[i],
                      " at position ", i, " for ", num_ids, " values");
    bags.offsets.push_back(start + length[i]);
  }
  TORCH_CHECK_VALUE(bags.offsets.back() == num_ids, "lengths: got a sum of ", bags.offsets.back(),
                    " for ", num_ids, " values, expected them to be equal");
  return bags;
}

/// A cross: the features that it combines, and the rows of its table.
struct Cross {
  at::IntArrayRef features;
  std::uint64_t num_rows;

  /// Returns whether a row has the combination, and writes the row of the table that it reads.
  bool Find(const Bags& bags, std::int64_t row, std::int64_t* found) const {
    bool is_one = true;
    std::uint64_t mixed = 0;
    for (const std::int64_t feature : features) {
      const std::int64_t bag = feature * bags.num_rows + row;
      const std::int64_t length = bags.LengthOf(bag);
      if (length == 0) return false;
      is_one = is_one && length == 1;
      mixed = MixedId(mixed ^ bags.FirstIdOf(bag));
    }
    *found = is_one ? static_cast<std::int64_t>(mixed % num_rows) : kSeveral;
    return true;
  }
};

std::vector<Cross> CrossesOf(std::int64_t num_features, at::IntArrayRef sizes,
                             at::IntArrayRef features, at::IntArrayRef num_rows) {
  TORCH_CHECK_VALUE(sizes.size() == num_rows.size(), "num_rows: got ", num_rows, ", expected ",
                    sizes.size(), " numbers");
  for (const std::int64_t feature : features) {
    TORCH_CHECK_VALUE(feature >= 0 && feature < num_features, "features: got ", feature,
                      ", expected 0 to ", num_features - 1);
  }
  std::vector<Cross> crosses;
  std::size_t first = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const auto left = static_cast<std::int64_t>(features.size() - first);
    TORCH_CHECK_VALUE(sizes[i] >= 1 && sizes[i] <= left, "sizes: got ", sizes, " for ",
                      features.size(), " features");
    TORCH_CHECK_VALUE(num_rows[i] >= 1, "num_rows: got ", num_rows[i], ", expected at least 1");
    const auto size = static_cast<std::size_t>(sizes[i]);
    crosses.push_back({features.slice(first, size), static_cast<std::uint64_t>(num_rows[i])});
    first += size;
  }
  return crosses;
}

at::Tensor Int64s(const at::Tensor& tensor, const char* name) {
  TORCH_CHECK_VALUE(tensor.scalar_type() == at::kLong && tensor.dim() == 1, name, ": got ",
                    tensor.scalar_type(), ' ', tensor.sizes(), ", expected int64 [n]");
  return tensor.contiguous();
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> CrossedRows(const at::Tensor& lengths, const at::Tensor& values,
                                               std::int64_t num_features, at::IntArrayRef sizes,
                                               at::IntArrayRef features, at::IntArrayRef num_rows) {
  const at::Tensor ids = Int64s(values, "values");
  const Bags bags = BagsOf(Int64s(lengths, "lengths"), ids, num_features);
  const std::vector<Cross> crosses = CrossesOf(num_features, sizes, features, num_rows);
  const std::int64_t num_bags = static_cast<std::int64_t>(crosses.size()) * bags.num_rows;
  const at::Tensor rows = at::empty({num_bags}, at::kLong), made = at::empty({num_bags}, at::kLong);
  auto* const begin = rows.mutable_data_ptr<std::int64_t>();
  auto* row = begin;
  auto* length = made.mutable_data_ptr<std::int64_t>();
  for (const Cross& cross : crosses) {
    for (std::int64_t i = 0; i < bags.num_rows; ++i) {
      const bool is_there = cross.Find(bags, i, row);
      *length++ = is_there ? 1 : 0;
      row += is_there ? 1 : 0;
    }
  }
  return {rows.narrow(0, 0, row - begin), made};
}

}  // namespace recsys::ops
