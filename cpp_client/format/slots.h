#ifndef RECSYS_FORMAT_SLOTS_H_
#define RECSYS_FORMAT_SLOTS_H_

// The buckets of a mapping from raw IDs to rows (recsys/managed/slots.py has the layout and why).

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace recsys {

/// Raw IDs of a bucket; as many rows follow them.
inline constexpr std::int64_t kSlots = 4;
/// Numbers of a bucket.
inline constexpr std::int64_t kBucketNumbers = 2 * kSlots;
inline constexpr std::int64_t kBucketBytes = 8 * kBucketNumbers;
/// A table has no more rows, and no more buckets.
inline constexpr std::int64_t kMaxMappedRows = std::int64_t{1} << 32;

/// A managed table's buckets: [num_buckets, kBucketNumbers] int64.
struct Slots {
  const std::int64_t* numbers = nullptr;
  /// A power of two, at least 2.
  std::int64_t num_buckets = 0;
  std::int64_t num_rows = 0;
};

/// Raw IDs whose rows change (recsys/managed/changes.py).
struct MappingChange {
  /// Ascending: those that were added, or moved to another row.
  std::vector<std::int64_t> raw_ids;
  /// The row of each of them; each row once.
  std::vector<std::int64_t> rows;
  /// Ascending: those that own no row any more; none of the others.
  std::vector<std::int64_t> evicted;
};

/// A change of a table's buckets, to be written once to the state that it was planned for.
struct BucketChange {
  /// Ascending.
  std::vector<std::int64_t> buckets;
  /// [buckets, kBucketNumbers]
  std::vector<std::int64_t> contents;
  /// The rows that raw IDs lose, and those that they get.
  std::vector<std::int64_t> freed, taken;
};

/// Returns the two buckets of a raw ID; they differ. `mask`: the number of buckets less one.
inline std::pair<std::int64_t, std::int64_t> BucketsOf(std::int64_t raw_id, std::uint64_t mask) {
  // recsys.ops.multiplied_bits: MurmurHash3's fmix64 without its last step.
  auto bits = static_cast<std::uint64_t>(raw_id);
  bits = (bits ^ (bits >> 33)) * 0xff51afd7ed558ccdU;
  bits = (bits ^ (bits >> 33)) * 0xc4ceb9fe1a85ec53U;
  const std::uint64_t first = bits & mask;
  return {static_cast<std::int64_t>(first),
          static_cast<std::int64_t>(first ^ (((bits >> 32) & mask) | 1))};
}

/// Returns the row of a raw ID in one of two buckets; -1 if it owns none.
inline std::int64_t RowIn(const std::int64_t* first, const std::int64_t* second,
                          std::int64_t raw_id) {
  std::int64_t row = -1;
  for (std::int64_t i = 0; i < kSlots; ++i) {
    // Free slots hold -1.
    row = first[i] == raw_id && first[kSlots + i] >= 0 ? first[kSlots + i] : row;
    row = second[i] == raw_id && second[kSlots + i] >= 0 ? second[kSlots + i] : row;
  }
  return row;
}

/// Returns the row of a raw ID; -1 if it owns none.
std::int64_t RowOf(const Slots& slots, std::int64_t raw_id);

/// Returns what is wrong with a table's buckets of a file; empty if nothing is. Sets which rows a
/// raw ID owns.
std::string FaultIn(const Slots& slots, std::vector<bool>* is_owned);

/// Checks a change against the present state of a table; nothing changes yet. `is_compacted`: it
/// stands for a chain of changes, which may evict raw IDs that came within it; `what`: begins
/// messages. Throws Error: kManifest if an evicted ID owns no row or a row would have two IDs,
/// kDelta if an ID has no place.
BucketChange PlanChange(const Slots& slots, const std::vector<bool>& is_owned,
                        const MappingChange& change, bool is_compacted, const std::string& what);

}  // namespace recsys

#endif  // RECSYS_FORMAT_SLOTS_H_
