#include "ops/row_wise.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace recsys::ops {
namespace {

/// Rows between the prefetch of a row and its use.
constexpr std::int64_t kAhead = 8;
constexpr std::int64_t kFloatsOfLine = 16;

void Prefetch(const float* row, std::int64_t dim) {
  for (std::int64_t d = 0; d < dim; d += kFloatsOfLine) __builtin_prefetch(row + d);
}

/// Returns the row of the value at a place of a slot.
std::int64_t RowOf(const RowWiseStep& step, std::int64_t slot, std::int64_t at) {
  const std::int64_t row = step.values[at] + step.first_rows[slot];
  if (row < 0 || row >= step.num_rows) {
    throw std::out_of_range("values: got row " + std::to_string(row) + ", expected 0 to " +
                            std::to_string(step.num_rows - 1));
  }
  return row;
}

/// Returns what the vectors of a slot's bag of so many IDs are multiplied by.
float Share(const RowWiseStep& step, std::int64_t slot, std::int64_t num_ids) {
  return step.means[slot] ? 1.0F / static_cast<float>(num_ids) : 1.0F;
}

/// The rows that slots of one shard have looked up, and the sum of each one's gradients.
class Sums {
 public:
  Sums(const RowWiseStep& step, const float* gradient) : step_(step), gradient_(gradient) {}

  /// Makes room for the sums of so many IDs, and forgets all rows.
  void Clear(std::int64_t num_ids) {
    std::size_t size = 16;
    shift_ = 60;
    for (; size < 2 * static_cast<std::size_t>(num_ids); size *= 2) --shift_;
    places_.assign(size, -1);
    rows_.clear();
    const auto needed = static_cast<std::size_t>(num_ids * step_.dim);
    if (sums_.size() < needed) sums_.resize(needed);
  }

  void AddSlot(std::int64_t slot) {
    const std::int64_t dim = step_.dim;
    const std::int64_t width = step_.num_slots * dim;
    const std::int64_t* const offsets = step_.offsets + slot * step_.num_bags;
    for (std::int64_t bag = 0; bag < step_.num_bags; ++bag) {
      const std::int64_t begin = offsets[bag];
      const std::int64_t end = offsets[bag + 1];
      const float* const of_bag = gradient_ + bag * width + slot * dim;
      if (step_.is_pooled && bag + kAhead < step_.num_bags) Prefetch(of_bag + kAhead * width, dim);
      const float share = Share(step_, slot, end - begin);
      for (std::int64_t i = begin; i < end; ++i) {
        const float* const of_id = step_.is_pooled ? of_bag : gradient_ + i * dim;
        Add(RowOf(step_, slot, i), of_id,
            step_.weights == nullptr ? share : share * step_.weights[i]);
      }
    }
  }

  /// Updates the rows by their sums.
  void Apply() const {
    const std::int64_t dim = step_.dim;
    const float* sum = sums_.data();
    for (const std::int64_t row : rows_) {
      float squares = 0.0F;
      for (std::int64_t d = 0; d < dim; ++d) squares += sum[d] * sum[d];
      float& state = step_.state[row];
      state += squares / static_cast<float>(dim);
      const float rate = step_.learning_rate / (std::sqrt(state) + step_.eps);
      float* const weight = step_.weight + row * dim;
      for (std::int64_t d = 0; d < dim; ++d) weight[d] -= rate * sum[d];
      sum += dim;
    }
  }

 private:
  void Add(std::int64_t row, const float* gradient, float factor) {
    const std::int64_t dim = step_.dim;
    // Fibonacci hashing: 2^64 divided by the golden ratio.
    std::size_t at = (static_cast<std::uint64_t>(row) * 0x9E3779B97F4A7C15U) >> shift_;
    while (places_[at] >= 0 && rows_[static_cast<std::size_t>(places_[at])] != row) {
      at = (at + 1) & (places_.size() - 1);
    }
    if (places_[at] >= 0) {
      float* const sum = sums_.data() + places_[at] * dim;
      for (std::int64_t d = 0; d < dim; ++d) sum[d] += factor * gradient[d];
      return;
    }
    places_[at] = static_cast<std::int64_t>(rows_.size());
    float* const sum = sums_.data() + places_[at] * dim;
    rows_.push_back(row);
    for (std::int64_t d = 0; d < dim; ++d) sum[d] = factor * gradient[d];
    __builtin_prefetch(step_.state + row);
    Prefetch(step_.weight + row * dim, dim);
  }

  const RowWiseStep& step_;
  const float* const gradient_;
  int shift_ = 60;
  std::vector<std::int64_t> places_;  // in rows_, by hash; -1 for none
  std::vector<std::int64_t> rows_;
  std::vector<float> sums_;  // [rows, D]
};

}  // namespace

void LookUpRows(const RowWiseStep& step, float* vectors) {
  const std::int64_t dim = step.dim;
  const std::int64_t width = step.num_slots * dim;
  for (std::int64_t slot = 0; slot < step.num_slots; ++slot) {
    const std::int64_t* const offsets = step.offsets + slot * step.num_bags;
    const std::int64_t last = offsets[step.num_bags];
    for (std::int64_t bag = 0; bag < step.num_bags; ++bag) {
      const float share = Share(step, slot, offsets[bag + 1] - offsets[bag]);
      float* const of_bag = vectors + bag * width + slot * dim;
      if (step.is_pooled) std::fill_n(of_bag, dim, 0.0F);
      for (std::int64_t i = offsets[bag]; i < offsets[bag + 1]; ++i) {
        if (i + kAhead < last) Prefetch(step.weight + RowOf(step, slot, i + kAhead) * dim, dim);
        const float* const row = step.weight + RowOf(step, slot, i) * dim;
        if (!step.is_pooled) {
          std::copy_n(row, dim, vectors + i * dim);
          continue;
        }
        const float factor = step.weights == nullptr ? share : share * step.weights[i];
        for (std::int64_t d = 0; d < dim; ++d) of_bag[d] += factor * row[d];
      }
    }
  }
}

void UpdateRows(const RowWiseStep& step, const float* gradient) {
  std::map<std::int64_t, std::vector<std::int64_t>> slots_of_shards;
  for (std::int64_t s = 0; s < step.num_slots; ++s) {
    slots_of_shards[step.first_rows[s]].push_back(s);
  }
  // Shard by shard, so that the sums and the rows stay in the cache between the two passes.
  Sums sums(step, gradient);
  for (const auto& [first, slots] : slots_of_shards) {
    std::int64_t num_ids = 0;
    for (const std::int64_t s : slots) {
      num_ids += step.offsets[(s + 1) * step.num_bags] - step.offsets[s * step.num_bags];
    }
    sums.Clear(num_ids);
    for (const std::int64_t s : slots) sums.AddSlot(s);
    sums.Apply();
  }
}

}  // namespace recsys::ops
