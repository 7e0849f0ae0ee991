// Lookups of stored rows, in terms of Lanes: included after linear_kernel.h.

#include <algorithm>
#include <array>
#include <cstdint>

namespace recsys::ops {
namespace {

/// IDs between a row's prefetch and its use.
constexpr std::int64_t kAhead = 16;
constexpr std::int64_t kCacheLine = 64;
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

/// One slot's bags.
template <RowType kType>
class SlotLookup {
 public:
  SlotLookup(const Lookup& lookup, const Slot& slot, std::int64_t index)
      : lookup_(lookup),
        slot_(slot),
        row_bytes_(RowBytes(kType, slot.dim)),
        offsets_(lookup.offsets + index * lookup.num_bags) {}

  /// Returns the position of the first ID out of range, or -1.
  std::int64_t Run(OutRows out) {
    const std::int64_t first = offsets_[lookup_.first_bag], end = offsets_[lookup_.end_bag];
    for (std::int64_t i = first; i < end; ++i) {
      if (static_cast<std::uint64_t>(lookup_.ids[i]) >= slot_.num_rows) return i;
    }
    for (std::int64_t i = first; i < std::min(first + kAhead, end); ++i) Prefetch(i);
    end_ = end;
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
          out.data + bag * out.stride + slot_.column);
    }
    return -1;
  }

 private:
  void Prefetch(std::int64_t i) const {
    const std::uint8_t* const row = slot_.rows + lookup_.ids[i] * row_bytes_;
    for (std::int64_t at = 0; at < row_bytes_; at += kCacheLine) __builtin_prefetch(row + at);
    __builtin_prefetch(row + row_bytes_ - 1);
  }
  StoredRow<kType> RowOf(std::int64_t i, float factor) const {
    const float weight = lookup_.weights == nullptr ? factor : lookup_.weights[i] * factor;
    return {slot_.rows + lookup_.ids[i] * row_bytes_, weight};
  }

  void Bag(std::int64_t from, std::int64_t to, float factor, float* out) {
    for (std::int64_t i = from; i < to; ++i) {
      if (i + kAhead < end_) Prefetch(i + kAhead);
    }
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
  std::int64_t end_ = 0;
};

/// Calls `run` with a type as a constant.
template <typename Run>
std::int64_t OfType(RowType type, const Run& run) {
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

std::int64_t LookUp(const Lookup& lookup, OutRows out) {
  for (std::int64_t i = 0; i < lookup.num_slots; ++i) {
    const Slot& slot = lookup.slots[i];
    const auto run = [&](auto type) {
      return SlotLookup<decltype(type)::value>(lookup, slot, i).Run(out);
    };
    const std::int64_t wrong = OfType(slot.type, run);
    if (wrong >= 0) return wrong;
  }
  return -1;
}

}  // namespace
}  // namespace recsys::ops
