#ifndef RECSYS_OPS_CONTEXT_CACHE_H_
#define RECSYS_OPS_CONTEXT_CACHE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "recsys/model.h"

namespace recsys::ops {

/// Spreads hashes over buckets by a secret of the process, so that no client can choose contexts
/// that share one.
struct SecretHash {
  std::size_t operator()(std::uint64_t hash) const;
};

/// What a context consists of: its lengths, IDs, weights and numbers, as bytes.
struct ContextKey {
  /// Whoever has it keeps the bytes alive.
  std::string_view bytes;
  /// Of the bytes.
  std::uint64_t hash = 0;
};

/// The values that graphs have computed of contexts, by what the contexts consist of: those used
/// last, within a number of bytes. Keys are compared by all of their bytes. Thread-safe; holds its
/// lock for no longer than it takes to find and to link entries.
class ContextCache {
 public:
  /// The numbers that a graph computes of a context; null for none.
  using Values = std::shared_ptr<const float[]>;

  /// `max_bytes`: of keys, values and what holds them. 0 keeps nothing.
  explicit ContextCache(std::int64_t max_bytes) : max_bytes_(max_bytes) {}
  ContextCache(const ContextCache&) = delete;
  ContextCache& operator=(const ContextCache&) = delete;

  /// Returns a number for a graph. Values belong to the graph that computed them: another one may
  /// have other weights.
  std::uint64_t AddOwner();

  /// What Find returns: by key, the values or null; and the state that Add asks for.
  struct Found {
    std::vector<Values> values;
    std::uint64_t generation = 0;
  };
  /// Counts hits and misses.
  Found Find(std::uint64_t owner, const std::vector<ContextKey>& keys);

  /// Returns the states that values are computed on from where a context's bag grows. They are a
  /// cache of their own, which takes half of the bytes from the first call on.
  ContextCache& States();

  /// What FindFirst returns: null values if there are none.
  struct First {
    Values values;
    /// Its place among the keys.
    std::int64_t place = 0;
    std::uint64_t generation = 0;
  };
  /// Finds the first of some keys that is there. Counts a hit or a miss.
  First FindFirst(std::uint64_t owner, const std::vector<ContextKey>& keys);

  /// Whether values of so many numbers have room beside a key.
  bool Fits(const ContextKey& key, std::int64_t num_values) const {
    return NumBytes(key, num_values) <= max_bytes_.load(std::memory_order_relaxed);
  }
  /// Keeps values, and drops those that were not used for the longest time to make room. Does
  /// nothing if the cache was cleared since `generation`: the values may be of old rows.
  void Add(std::uint64_t owner, std::uint64_t generation, const ContextKey& key, Values values,
           std::int64_t num_values);

  /// Drops all values, and those that are being computed now: call it after rows have changed.
  void Clear();
  /// Counts hits, misses and evictions from 0 on.
  void ResetCounts();
  ContextCacheCounts counts() const;

 private:
  struct Entry {
    std::string key;
    std::uint64_t hash = 0, owner = 0;
    Values values;
    std::int64_t num_bytes = 0;
  };
  using Entries = std::list<Entry>;

  static std::int64_t NumBytes(const ContextKey& key, std::int64_t num_values);
  /// Returns the entry of a key; the end if there is none.
  Entries::iterator EntryOf(std::uint64_t owner, const ContextKey& key);
  /// Moves an entry to `dropped`, which is destroyed without the lock.
  void Drop(Entries::iterator entry, Entries* dropped);

  std::atomic<std::int64_t> max_bytes_;
  mutable std::mutex mutex_;
  /// Null before the first call of States(); then it stays.
  std::unique_ptr<ContextCache> states_;
  /// The one that was used last is the first.
  Entries entries_;
  /// One for each hash.
  std::unordered_map<std::uint64_t, Entries::iterator, SecretHash> by_hash_;
  std::int64_t num_bytes_ = 0;
  std::uint64_t generation_ = 0, num_owners_ = 0;
  ContextCacheCounts counts_;
};

}  // namespace recsys::ops

#endif  // RECSYS_OPS_CONTEXT_CACHE_H_
