// Fuzzes the buckets of a mapping from a file, and changes of it as deltas have them.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "format/slots.h"
#include "recsys/error.h"

namespace {

using recsys::kBucketNumbers;

class Bytes {
 public:
  Bytes(const std::uint8_t* bytes, std::size_t size) : at_(bytes), end_(bytes + size) {}

  bool any() const { return at_ != end_; }
  int Next() { return any() ? *at_++ : 0; }

 private:
  const std::uint8_t* at_;
  const std::uint8_t* const end_;
};

/// Buckets that are whatever a file says must be refused, or be a mapping.
void ReadBuckets(const std::uint8_t* bytes, std::size_t size) {
  std::int64_t num_buckets = 2;
  const auto num_bytes = [&] {
    return static_cast<std::size_t>(num_buckets * recsys::kBucketBytes);
  };
  if (size < num_bytes()) return;
  while (num_bytes() * 2 <= size && num_buckets < 64) num_buckets *= 2;
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(num_buckets * kBucketNumbers));
  std::memcpy(numbers.data(), bytes, num_bytes());
  std::vector<bool> is_owned;
  recsys::FaultIn({numbers.data(), num_buckets, 100}, &is_owned);
}

/// Returns a change of few IDs, some of them known.
recsys::MappingChange ChangeOf(Bytes* bytes, std::int64_t num_rows) {
  recsys::MappingChange change;
  std::map<std::int64_t, std::int64_t> rows;
  std::set<std::int64_t> evicted, taken;
  for (int left = bytes->Next() % 16; left > 0; --left) {
    const std::int64_t raw_id = bytes->Next() - 128, row = bytes->Next() % num_rows;
    if (bytes->Next() % 3 == 0) {
      if (rows.count(raw_id) == 0) evicted.insert(raw_id);
    } else if (evicted.count(raw_id) == 0 && rows.count(raw_id) == 0 && taken.insert(row).second) {
      rows.emplace(raw_id, row);
    }
  }
  for (const auto& [raw_id, row] : rows) {
    change.raw_ids.push_back(raw_id);
    change.rows.push_back(row);
  }
  change.evicted.assign(evicted.begin(), evicted.end());
  return change;
}

/// What a change leads to must be what a plain map says.
void ApplyChanges(Bytes bytes) {
  const std::int64_t num_buckets = std::int64_t{2} << (bytes.Next() % 4);
  const std::int64_t num_rows = 1 + bytes.Next() % 60;
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(num_buckets * kBucketNumbers), -1);
  std::vector<bool> is_owned(static_cast<std::size_t>(num_rows));
  std::map<std::int64_t, std::int64_t> expected;
  const recsys::Slots slots{numbers.data(), num_buckets, num_rows};
  while (bytes.any()) {
    const bool is_compacted = bytes.Next() % 2 == 0;
    const recsys::MappingChange change = ChangeOf(&bytes, num_rows);
    recsys::BucketChange planned;
    try {
      planned = recsys::PlanChange(slots, is_owned, change, is_compacted, "change");
    } catch (const recsys::Error&) {
      continue;
    }
    for (std::size_t i = 0; i < planned.buckets.size(); ++i) {
      std::memcpy(numbers.data() + planned.buckets[i] * kBucketNumbers,
                  planned.contents.data() + i * kBucketNumbers, recsys::kBucketBytes);
    }
    for (const std::int64_t raw_id : change.evicted) expected.erase(raw_id);
    for (std::size_t i = 0; i < change.raw_ids.size(); ++i) {
      expected[change.raw_ids[i]] = change.rows[i];
    }
    if (!recsys::FaultIn(slots, &is_owned).empty()) __builtin_trap();
    for (std::int64_t raw_id = -128; raw_id < 128; ++raw_id) {
      const auto found = expected.find(raw_id);
      if (recsys::RowOf(slots, raw_id) != (found == expected.end() ? -1 : found->second)) {
        __builtin_trap();
      }
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  ReadBuckets(bytes, size);
  ApplyChanges({bytes, size});
  return 0;
}
