#include "ops/program/row_steps.h"

#include <algorithm>

#include "ops/scratch.h"

namespace recsys::ops {
namespace {

/// Returns a number without the part behind the point, between 0 and `most`; 0 for NaN.
std::int64_t Bounded(float number, std::int64_t most) {
  if (number >= static_cast<float>(most)) return most;
  return number > 0 ? static_cast<std::int64_t>(number) : 0;
}

}  // namespace

void ReadIds(const Kernels& kernels, const Lookup& lookup, const std::uint8_t* const* found,
             std::int64_t num_ids, OutRows out) {
  // As the only bag of a lookup.
  Slot slot = lookup.slots[0];
  slot.feature = 0;
  const std::int64_t bounds[2] = {0, num_ids};
  Lookup one = lookup;
  one.slots = &slot;
  one.num_bags = one.end_bag = 1;
  one.first_bag = 0;
  one.offsets = bounds;
  kernels.pool(one, found, out);
}

void AddFromIds(const Step& step, Rows from, const IdAt* ids, std::int64_t num_ids, OutRows out) {
  for (std::int64_t i = 0; i < num_ids; ++i) {
    const float* const at = from.data + i * from.stride;
    float* const to = out.data + ids[i].row * out.stride;
    for (std::int64_t k = 0; k < step.out.width; ++k) to[k] += at[k];
  }
}

void ReadSequences(const Kernels& kernels, const Lookup& lookup, const std::uint8_t* const* found,
                   const Step& step, OutRows out) {
  // One bag after the other, as the only one of a lookup.
  Slot slot = lookup.slots[0];
  const std::int64_t* const offsets = OffsetsOf(lookup, slot) + lookup.first_bag;
  slot.feature = 0;
  const std::int64_t most = step.out.width / slot.dim;
  std::int64_t bounds[2] = {0, 0};
  Lookup one = lookup;
  one.slots = &slot;
  one.num_bags = one.end_bag = 1;
  one.first_bag = 0;
  one.offsets = bounds;
  for (std::int64_t bag = 0; bag < lookup.end_bag - lookup.first_bag; ++bag) {
    const std::int64_t length = offsets[bag + 1] - offsets[bag];
    const std::int64_t count = std::min(length, most);
    const std::uint8_t* const* rows = found + (offsets[bag] - offsets[0]);
    float* const to = out.data + bag * out.stride;
    const auto order = static_cast<SequenceOrder>(step.extra);
    if (order == SequenceOrder::kRecent) rows += length - count;
    if (order == SequenceOrder::kBackwards && count > 0) {
      auto* const backwards = reinterpret_cast<const std::uint8_t**>(
          ScratchOf(Scratch::kIds, (count + kRowsAhead) * std::int64_t{sizeof(char*)}));
      for (std::int64_t i = 0; i < count; ++i) backwards[i] = rows[length - 1 - i];
      std::fill_n(backwards + count, kRowsAhead, slot.rows);
      rows = backwards;
    }
    bounds[1] = count;
    if (count > 0) kernels.pool(one, rows, {to, slot.dim});
    std::fill_n(to + count * slot.dim, (most - count) * slot.dim, 0.0F);
  }
}

void ReadLengths(const FeatureIds& feature, std::int64_t first, std::int64_t num_rows,
                 OutRows out) {
  const std::int64_t* const offsets = feature.offsets + first;
  for (std::int64_t row = 0; row < num_rows; ++row) {
    out.data[row * out.stride] = static_cast<float>(offsets[row + 1] - offsets[row]);
  }
}

void ReadDifferences(const FeatureIds& feature, std::int64_t first, std::int64_t num_rows,
                     std::int64_t size, OutRows out) {
  const std::int64_t* const offsets = feature.offsets + first;
  auto* const ids = reinterpret_cast<std::uint64_t*>(
      ScratchOf(Scratch::kIds, size * std::int64_t{sizeof(std::uint64_t)}));
  for (std::int64_t row = 0; row < num_rows; ++row) {
    const std::int64_t count = std::min(offsets[row + 1] - offsets[row], size);
    std::copy_n(feature.ids + offsets[row], count, ids);
    std::fill(ids + count, ids + size, std::uint64_t{0});
    float* const to = out.data + row * out.stride;
    for (std::int64_t i = 0; i < size; ++i) {
      // Without a sign: as torch, differences wrap.
      for (std::int64_t j = 0; j < size; ++j) {
        to[i * size + j] = static_cast<float>(static_cast<std::int64_t>(ids[i] - ids[j]));
      }
    }
  }
}

void TakeVectors(const Step& step, Rows numbers, Rows from, std::int64_t num_rows, OutRows out) {
  const std::int64_t width = step.extra, count = step.a.width;
  const std::int64_t last = step.b.width / width - 1;
  for (std::int64_t row = 0; row < num_rows; ++row) {
    const float* const at = numbers.data + row * numbers.stride;
    const float* const vectors = from.data + row * from.stride;
    float* to = out.data + row * out.stride;
    for (std::int64_t i = 0; i < count; ++i, to += width) {
      std::copy_n(vectors + Bounded(at[i], last) * width, width, to);
    }
  }
}

std::int64_t NumIdsOf(float length, std::int64_t most) { return Bounded(length, most); }

void ReadToIds(const Step& step, Rows from, const IdAt* ids, std::int64_t num_ids, OutRows out) {
  const std::int64_t width = step.out.width;
  const std::int64_t by_place = step.a.width == width ? 0 : width;
  for (std::int64_t i = 0; i < num_ids; ++i) {
    std::copy_n(from.data + ids[i].row * from.stride + ids[i].place * by_place, width,
                out.data + i * out.stride);
  }
}

void WriteFromIds(const Step& step, Rows from, const IdAt* ids, std::int64_t num_ids, OutRows out) {
  const std::int64_t width = step.a.width;
  for (std::int64_t i = 0; i < num_ids; ++i) {
    std::copy_n(from.data + i * from.stride, width,
                out.data + ids[i].row * out.stride + ids[i].place * width);
  }
}

std::int64_t FindApart(const Kernels& kernels, const Lookup& lookup, const std::uint8_t** rows) {
  Lookup one = lookup;
  one.num_slots = 1;
  for (std::int64_t i = 0; i < lookup.num_slots; ++i) {
    one.slots = lookup.slots + i;
    const std::int64_t* const offsets = OffsetsOf(lookup, *one.slots);
    const std::int64_t from = offsets[lookup.first_bag], to = offsets[lookup.end_bag];
    if (lookup.found[i] != nullptr) {
      const std::uint8_t* const* const found = lookup.found[i] - offsets[0];
      std::copy(found + from, found + to, rows);
    } else {
      const std::int64_t wrong = kernels.find(one, rows);
      if (wrong >= 0) return wrong;
    }
    rows += to - from;
  }
  return -1;
}

}  // namespace recsys::ops
