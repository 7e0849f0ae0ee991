// Lookups of stored rows, in terms of Lanes: included after linear_kernel.h.

#include <algorithm>
#include <array>
#include <cstdint>

namespace recsys::ops {
namespace {

/// Columns whose sums are kept in registers together: this many times 16.
constexpr int kLanesTogether = 4;
constexpr std::int64_t kScaleBiasBytes = 4;

/// The codes in each byte, first in the low bits: two of 4 bits, or four of 2.
template <int kBits>
constexpr std::array<std::array<std::uint8_t, 8 / kBits>, 256> CodesOfBytes() {
  std::array<std::array<std::uint8_t, 8 / kBits>, 256> codes{};
  for (int byte = 0; byte < 256; ++byte) {
    for (int i = 0; i < 8 / kBits; ++i) {
      codes[byte][i] = static_cast<std::uint8_t>(byte >> (i * kBits) & ((1 << kBits) - 1));
    }
  }
  return codes;
}

template <int kBits>
void Unpack(const std::uint8_t* from, std::int64_t count, std::uint8_t* to) {
  static constexpr auto kCodes = CodesOfBytes<kBits>();
  constexpr int kPerByte = 8 / kBits;
  for (std::int64_t i = 0; i < count / kPerByte; ++i) {
    std::memcpy(to + i * kPerByte, kCodes[from[i]].data(), kPerByte);
  }
}

/// A stored row; numbers are read 16 at a time, or those of the end into a buffer of zeros.
template <RowType kType>
struct StoredRow {
  static constexpr bool kHasScale = kType != RowType::kFloat32 && kType != RowType::kFloat16;

  StoredRow(const std::uint8_t* row, float weight) : data(row) {
    if constexpr (kHasScale) {
      scale = Lanes::All(Lanes::OfHalf(row) * weight);
      bias = Lanes::All(Lanes::OfHalf(row + 2) * weight);
      data += kScaleBiasBytes;
    } else {
      scale = Lanes::All(weight);
      bias = Lanes::All(0);
    }
  }

  /// Adds `count` columns, at most 16, times the weight.
  void AddTo(std::int64_t from, std::int64_t count, Lanes::Floats* sums) const {
    *sums = Lanes::Add(*sums, Lanes::TimesAdd(Codes(from, count), scale, bias));
  }

  Lanes::Floats Codes(std::int64_t from, std::int64_t count) const {
    constexpr std::int64_t kBits = kType == RowType::kFloat32   ? 32
                                   : kType == RowType::kFloat16 ? 16
                                   : kType == RowType::kInt8    ? 8
                                   : kType == RowType::kInt4    ? 4
                                                                : 2;
    const std::uint8_t* at = data + from * kBits / 8;
    std::uint8_t end[kLane * 4] = {};
    if (count < kLane) {
      std::memcpy(end, at, static_cast<std::size_t>(count * kBits / 8));
      at = end;
    }
    if constexpr (kType == RowType::kFloat32) {
      return Lanes::Load(reinterpret_cast<const float*>(at));
    } else if constexpr (kType == RowType::kFloat16) {
      return Lanes::OfHalves(at);
    } else if constexpr (kType == RowType::kInt8) {
      return Lanes::OfBytes(at);
    } else {
      std::uint8_t codes[kLane];
      Unpack<kBits>(at, kLane, codes);
      return Lanes::OfBytes(codes);
    }
  }

  const std::uint8_t* data;
  Lanes::Floats scale, bias;
};

/// One slot's bags, of which the rows are known.
template <RowType kType>
class SlotLookup {
 public:
  /// `rows`: of the IDs of the lookup's bags, and kRowsAhead more.
  SlotLookup(const Lookup& lookup, const Slot& slot, const std::int64_t* offsets,
             const std::uint8_t* const* rows)
      : lookup_(lookup),
        slot_(slot),
        row_bytes_(RowBytes(kType, slot.dim)),
        offsets_(offsets),
        rows_(rows) {}

  /// Pools the bags, or copies the rows of their IDs.
  void Run(OutRows out) {
    first_ = offsets_[lookup_.first_bag];
    for (std::int64_t bag = lookup_.first_bag; bag < lookup_.end_bag; ++bag) {
      const std::int64_t from = offsets_[bag], to = offsets_[bag + 1];
      if (lookup_.pooling == Pooling::kNone) {
        for (std::int64_t i = from; i < to; ++i) {
          Bag(i, i + 1, 1, out.data + i * out.stride + slot_.column);
        }
        continue;
      }
      const bool is_mean = lookup_.pooling == Pooling::kMean && to > from;
      Bag(from, to, is_mean ? 1 / static_cast<float>(to - from) : 1,
          out.data + (bag - lookup_.first_bag) * out.stride + slot_.column);
    }
  }

 private:
  StoredRow<kType> RowOf(std::int64_t i, float factor) const {
    const float weight = lookup_.weights == nullptr ? factor : lookup_.weights[i] * factor;
    return {rows_[i - first_], weight};
  }

  void Bag(std::int64_t from, std::int64_t to, float factor, float* out) {
    for (std::int64_t i = from; i < to; ++i)
      Prefetch<3>(rows_[i - first_ + kRowsAhead], row_bytes_);
    std::int64_t column = 0;
    for (; column + kLanesTogether * kLane <= slot_.dim; column += kLanesTogether * kLane) {
      Lanes::Floats sums[kLanesTogether];
#pragma GCC unroll 4
      for (Lanes::Floats& sum : sums) sum = Lanes::All(0);
      for (std::int64_t i = from; i < to; ++i) {
        const StoredRow<kType> row = RowOf(i, factor);
#pragma GCC unroll 4
        for (int lane = 0; lane < kLanesTogether; ++lane) {
          row.AddTo(column + lane * kLane, kLane, &sums[lane]);
        }
      }
#pragma GCC unroll 4
      for (int lane = 0; lane < kLanesTogether; ++lane) {
        Lanes::Store(out + column + lane * kLane, sums[lane]);
      }
    }
    for (; column < slot_.dim; column += kLane) {
      const std::int64_t count = std::min(kLane, slot_.dim - column);
      Lanes::Floats sums = Lanes::All(0);
      for (std::int64_t i = from; i < to; ++i) {
        RowOf(i, factor).AddTo(column, count, &sums);
      }
      float all[kLane];
      Lanes::Store(all, sums);
      std::copy_n(all, count, out + column);
    }
  }

  const Lookup& lookup_;
  const Slot& slot_;
  const std::int64_t row_bytes_;
  const std::int64_t* const offsets_;
  const std::uint8_t* const* const rows_;
  std::int64_t first_ = 0;
};

/// Calls `run` with a type as a constant.
template <typename Run>
void OfType(RowType type, const Run& run) {
  switch (type) {
    case RowType::kFloat32:
      return run(std::integral_constant<RowType, RowType::kFloat32>());
    case RowType::kFloat16:
      return run(std::integral_constant<RowType, RowType::kFloat16>());
    case RowType::kInt8:
      return run(std::integral_constant<RowType, RowType::kInt8>());
    case RowType::kInt4:
      return run(std::integral_constant<RowType, RowType::kInt4>());
    default:
      return run(std::integral_constant<RowType, RowType::kInt2>());
  }
}

/// Finds the rows of IDs `from` to `to`. Returns the position of the first ID out of range, or -1.
inline std::int64_t FindRows(const Slot& slot, const std::int64_t* ids, std::int64_t from,
                             std::int64_t to, const std::uint8_t** rows) {
  // A number, as what lies out of range is computed too.
  const auto start = reinterpret_cast<std::uintptr_t>(slot.rows);
  const auto row_bytes = static_cast<std::uint64_t>(RowBytes(slot.type, slot.dim));
  const std::uint64_t num_rows = slot.num_rows, last_id = slot.last_id;
  std::uint64_t is_wrong = 0;
  const auto find = [&](std::int64_t i, std::uint64_t row) {
    is_wrong |= static_cast<std::uint64_t>(row >= num_rows);
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    rows[i - from] = reinterpret_cast<const std::uint8_t*>(start + row * row_bytes);
  };
  if (slot.is_mixed) {
    const auto modulus = static_cast<std::uint64_t>(slot.modulus);
    for (std::int64_t i = from; i < to; ++i) {
      find(i, MixedId(static_cast<std::uint64_t>(ids[i])) % modulus);
    }
  } else if (slot.modulus > 0) {
    for (std::int64_t i = from; i < to; ++i) find(i, RowOfId(slot, ids[i]));
  } else {
    // Without branches, so that the compiler makes vectors of it.
    for (std::int64_t i = from; i < to; ++i) {
      find(i, std::min(static_cast<std::uint64_t>(ids[i]), last_id));
    }
  }
  if (is_wrong == 0) return -1;
  return std::find_if(ids + from, ids + to,
                      [&](std::int64_t id) { return RowOfId(slot, id) >= num_rows; }) -
         ids;
}

/// Finds the rows of a lookup's IDs, slot by slot.
std::int64_t Find(const Lookup& lookup, const std::uint8_t** rows) {
  for (std::int64_t i = 0; i < lookup.num_slots; ++i) {
    const std::int64_t* const offsets = OffsetsOf(lookup, lookup.slots[i]);
    const std::int64_t from = offsets[lookup.first_bag], to = offsets[lookup.end_bag];
    const std::int64_t wrong = FindRows(lookup.slots[i], lookup.ids, from, to, rows);
    if (wrong >= 0) return wrong;
    rows += to - from;
  }
  return -1;
}

/// Looks up rows that were found.
void Pool(const Lookup& lookup, const std::uint8_t* const* rows, OutRows out) {
  const std::int64_t row_bytes = RowBytes(lookup.slots[0].type, lookup.slots[0].dim);
  for (std::int64_t k = 0; k < kRowsAhead; ++k) Prefetch<3>(rows[k], row_bytes);
  for (std::int64_t i = 0; i < lookup.num_slots; ++i) {
    const Slot& slot = lookup.slots[i];
    const std::int64_t* const offsets = OffsetsOf(lookup, slot);
    OfType(slot.type, [&](auto type) {
      SlotLookup<decltype(type)::value>(lookup, slot, offsets, rows).Run(out);
    });
    rows += offsets[lookup.end_bag] - offsets[lookup.first_bag];
  }
}

}  // namespace
}  // namespace recsys::ops
