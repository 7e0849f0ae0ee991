#include "format/slots.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <unordered_set>
#include <utility>

#include "base/yield.h"
#include "recsys/error.h"

namespace recsys {
namespace {

constexpr std::int64_t kFree = -1;
// Buckets that are searched for a free slot before a table counts as full.
constexpr std::size_t kMostSearched = 4096;

using Bucket = std::array<std::int64_t, kBucketNumbers>;

std::pair<std::int64_t, std::int64_t> BucketsIn(const Slots& slots, std::int64_t raw_id) {
  return BucketsOf(raw_id, static_cast<std::uint64_t>(slots.num_buckets - 1));
}

/// Copies of the buckets that change.
class Work {
 public:
  explicit Work(const Slots& slots) : slots_(slots) {}
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;
  ~Work() {
    // Freeing a million copies in one turn takes a tenth of a second.
    while (!copies_.empty()) {
      YieldIfDue(copies_.size());
      copies_.erase(copies_.begin());
    }
  }

  void Remove(std::int64_t raw_id) {
    const auto [first, second] = BucketsIn(slots_, raw_id);
    for (const std::int64_t number : {first, second}) {
      Bucket& bucket = At(number);
      for (std::int64_t i = 0; i < kSlots; ++i) {
        if (RowAt(bucket, i) >= 0 && bucket[static_cast<std::size_t>(i)] == raw_id) {
          return Put(&bucket, i, 0, kFree);
        }
      }
    }
  }

  /// Returns whether there was a place, perhaps after others moved to their other bucket.
  bool Place(std::int64_t raw_id, std::int64_t row) {
    // Each entry: a bucket, the entry before it, and the slot there whose ID can move here.
    struct Step {
      std::int64_t number;
      std::size_t before;
      std::int64_t slot;
    };
    const auto [first, second] = BucketsIn(slots_, raw_id);
    std::vector<Step> path = {{first, 0, -1}, {second, 0, -1}};
    std::unordered_set<std::int64_t> seen = {first, second};
    for (std::size_t at = 0; at < path.size(); ++at) {
      const Bucket bucket = At(path[at].number);
      for (std::int64_t free = 0; free < kSlots; ++free) {
        if (RowAt(bucket, free) >= 0) continue;
        for (; path[at].slot >= 0; at = path[at].before) {
          Bucket& from = At(path[path[at].before].number);
          const std::int64_t slot = path[at].slot;
          Put(&At(path[at].number), free, from[static_cast<std::size_t>(slot)], RowAt(from, slot));
          free = slot;
        }
        Put(&At(path[at].number), free, raw_id, row);
        return true;
      }
      if (path.size() > kMostSearched) return false;
      for (std::int64_t slot = 0; slot < kSlots; ++slot) {
        const auto both = BucketsIn(slots_, bucket[static_cast<std::size_t>(slot)]);
        const std::int64_t other = both.first == path[at].number ? both.second : both.first;
        if (seen.insert(other).second) path.push_back({other, at, slot});
      }
    }
    return false;
  }

  void AddTo(BucketChange* change) const {
    // Growing would copy all in one turn.
    change->buckets.reserve(copies_.size());
    change->contents.reserve(copies_.size() * kBucketNumbers);
    for (const auto& [number, bucket] : copies_) {
      YieldIfDue(change->buckets.size());
      if (std::memcmp(bucket.data(), Stored(number), kBucketBytes) == 0) continue;
      change->buckets.push_back(number);
      change->contents.insert(change->contents.end(), bucket.begin(), bucket.end());
    }
  }

 private:
  static std::int64_t RowAt(const Bucket& bucket, std::int64_t slot) {
    return bucket[static_cast<std::size_t>(kSlots + slot)];
  }
  static void Put(Bucket* bucket, std::int64_t slot, std::int64_t raw_id, std::int64_t row) {
    (*bucket)[static_cast<std::size_t>(slot)] = raw_id;
    (*bucket)[static_cast<std::size_t>(kSlots + slot)] = row;
  }
  const std::int64_t* Stored(std::int64_t number) const {
    return slots_.numbers + number * kBucketNumbers;
  }
  Bucket& At(std::int64_t number) {
    const auto [found, is_new] = copies_.try_emplace(number);
    if (is_new) std::memcpy(found->second.data(), Stored(number), kBucketBytes);
    return found->second;
  }

  const Slots slots_;
  std::map<std::int64_t, Bucket> copies_;
};

}  // namespace

std::int64_t RowOf(const Slots& slots, std::int64_t raw_id) {
  const auto [first, second] = BucketsIn(slots, raw_id);
  return RowIn(slots.numbers + first * kBucketNumbers, slots.numbers + second * kBucketNumbers,
               raw_id);
}

std::string FaultIn(const Slots& slots, std::vector<bool>* is_owned) {
  is_owned->assign(static_cast<std::size_t>(slots.num_rows), false);
  const std::int64_t* bucket = slots.numbers;
  for (std::int64_t number = 0; number < slots.num_buckets; ++number, bucket += kBucketNumbers) {
    for (std::int64_t i = 0; i < kSlots; ++i) {
      const std::int64_t raw_id = bucket[i], row = bucket[kSlots + i];
      if (row < kFree || row >= slots.num_rows) {
        return "got row " + std::to_string(row) + ", expected -1 to " +
               std::to_string(slots.num_rows - 1);
      }
      if (row == kFree) continue;
      if ((*is_owned)[static_cast<std::size_t>(row)]) {
        return "got a row of two raw IDs, expected each once";
      }
      (*is_owned)[static_cast<std::size_t>(row)] = true;
      const auto [first, second] = BucketsIn(slots, raw_id);
      if (number != first && number != second) {
        return "got a raw ID in another bucket than its hash selects";
      }
      // The same row where it is found first: it has no other.
      if (RowOf(slots, raw_id) != row) return "got a raw ID with two rows, expected each once";
    }
  }
  return "";
}

BucketChange PlanChange(const Slots& slots, const std::vector<bool>& is_owned,
                        const MappingChange& change, bool is_compacted, const std::string& what) {
  BucketChange planned;
  planned.freed.reserve(change.evicted.size() + change.raw_ids.size());
  Work work(slots);
  std::size_t num_pieces = 0;
  for (const std::int64_t raw_id : change.evicted) {
    YieldIfDue(num_pieces++);
    const std::int64_t row = RowOf(slots, raw_id);
    if (row < 0 && is_compacted) continue;
    if (row < 0) {
      throw Error(ErrorKind::kManifest, what + ": got raw ID " + std::to_string(raw_id) +
                                            " as evicted, expected one that owns a row");
    }
    planned.freed.push_back(row);
    work.Remove(raw_id);
  }
  for (const std::int64_t raw_id : change.raw_ids) {
    YieldIfDue(num_pieces++);
    const std::int64_t row = RowOf(slots, raw_id);
    if (row < 0) continue;
    planned.freed.push_back(row);
    work.Remove(raw_id);
  }
  const std::vector<std::int64_t> freed = SortedInTurns(planned.freed);
  for (std::size_t i = 0; i < change.rows.size(); ++i) {
    YieldIfDue(i);
    const std::int64_t row = change.rows[i];
    if (is_owned[static_cast<std::size_t>(row)] &&
        !std::binary_search(freed.begin(), freed.end(), row)) {
      throw Error(ErrorKind::kManifest, what + ": got row " + std::to_string(row) + " for raw ID " +
                                            std::to_string(change.raw_ids[i]) +
                                            ", expected a row that no other raw ID owns");
    }
  }
  for (std::size_t i = 0; i < change.raw_ids.size(); ++i) {
    YieldIfDue(i);
    if (work.Place(change.raw_ids[i], change.rows[i])) continue;
    throw Error(ErrorKind::kDelta,
                what + ": raw ID " + std::to_string(change.raw_ids[i]) +
                    ": its buckets are full, and so are those that their IDs could move to; export "
                    "the new checkpoint as a whole");
  }
  work.AddTo(&planned);
  planned.taken = CopiedInTurns(change.rows);
  return planned;
}

}  // namespace recsys
