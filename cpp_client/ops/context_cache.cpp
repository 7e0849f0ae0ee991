#include "ops/context_cache.h"

#include <random>
#include <utility>

namespace recsys::ops {
namespace {

using Lock = std::lock_guard<std::mutex>;

/// At most what an entry takes beside its key and values: the nodes of list and map, buckets, the
/// block that counts references, and what malloc adds to each (190 to 230 bytes with glibc 2.36).
constexpr std::int64_t kEntryBytes = 256;

constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15U;

/// Returns a hash of a key and its owner.
std::uint64_t HashOf(std::uint64_t owner, const ContextKey& key) {
  return key.hash ^ (owner * kOdd);
}

}  // namespace

std::size_t SecretHash::operator()(std::uint64_t hash) const {
  static const std::uint64_t secret = [] {
    std::random_device device;
    return (std::uint64_t{device()} << 32) | device();
  }();
  std::uint64_t bits = (hash ^ secret) * 0xbf58476d1ce4e5b9U;
  bits = (bits ^ (bits >> 31) ^ secret) * 0x94d049bb133111ebU;
  return bits ^ (bits >> 29);
}

std::int64_t ContextCache::NumBytes(const ContextKey& key, std::int64_t num_values) {
  return static_cast<std::int64_t>(key.bytes.size()) +
         num_values * static_cast<std::int64_t>(sizeof(float)) + kEntryBytes;
}

std::uint64_t ContextCache::AddOwner() {
  const Lock lock(mutex_);
  return ++num_owners_;
}

ContextCache::Entries::iterator ContextCache::EntryOf(std::uint64_t owner, const ContextKey& key) {
  const auto found = by_hash_.find(HashOf(owner, key));
  if (found == by_hash_.end()) return entries_.end();
  const Entry& entry = *found->second;
  return entry.owner == owner && entry.key == key.bytes ? found->second : entries_.end();
}

ContextCache::Found ContextCache::Find(std::uint64_t owner, const std::vector<ContextKey>& keys) {
  Found found;
  found.values.resize(keys.size());
  const Lock lock(mutex_);
  found.generation = generation_;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto entry = EntryOf(owner, keys[i]);
    if (entry == entries_.end()) {
      ++counts_.misses;
      continue;
    }
    ++counts_.hits;
    entries_.splice(entries_.begin(), entries_, entry);
    found.values[i] = entry->values;
  }
  return found;
}

ContextCache& ContextCache::States() {
  const Lock lock(mutex_);
  if (states_ == nullptr) {
    const std::int64_t half = max_bytes_.load() / 2;
    states_ = std::make_unique<ContextCache>(half);
    max_bytes_ = max_bytes_.load() - half;
  }
  return *states_;
}

ContextCache::First ContextCache::FindFirst(std::uint64_t owner,
                                            const std::vector<ContextKey>& keys) {
  First first;
  const Lock lock(mutex_);
  first.generation = generation_;
  for (const ContextKey& key : keys) {
    const auto entry = EntryOf(owner, key);
    if (entry == entries_.end()) {
      ++first.place;
      continue;
    }
    ++counts_.hits;
    entries_.splice(entries_.begin(), entries_, entry);
    first.values = entry->values;
    return first;
  }
  ++counts_.misses;
  return first;
}

void ContextCache::Drop(Entries::iterator entry, Entries* dropped) {
  by_hash_.erase(entry->hash);
  num_bytes_ -= entry->num_bytes;
  dropped->splice(dropped->begin(), entries_, entry);
}

void ContextCache::Add(std::uint64_t owner, std::uint64_t generation, const ContextKey& key,
                       Values values, std::int64_t num_values) {
  if (!Fits(key, num_values)) return;
  const std::int64_t num_bytes = NumBytes(key, num_values);
  const std::uint64_t hash = HashOf(owner, key);
  // What leaves is destroyed without the lock.
  Entries added, dropped;
  added.push_back({std::string(key.bytes), hash, owner, std::move(values), num_bytes});
  const Lock lock(mutex_);
  if (generation != generation_) return;
  const auto [place, is_new] = by_hash_.try_emplace(hash, added.begin());
  if (!is_new) {
    // Another thread computed the same meanwhile, or another context has the same hash.
    num_bytes_ -= place->second->num_bytes;
    dropped.splice(dropped.begin(), entries_, place->second);
    place->second = added.begin();
  }
  entries_.splice(entries_.begin(), added);
  num_bytes_ += num_bytes;
  while (num_bytes_ > max_bytes_) {
    Drop(std::prev(entries_.end()), &dropped);
    ++counts_.evictions;
  }
}

void ContextCache::Clear() {
  Entries dropped;
  const Lock lock(mutex_);
  ++generation_;
  dropped.swap(entries_);
  by_hash_.clear();
  num_bytes_ = 0;
  if (states_ != nullptr) states_->Clear();
}

void ContextCache::ResetCounts() {
  const Lock lock(mutex_);
  counts_ = {};
  if (states_ != nullptr) states_->ResetCounts();
}

ContextCacheCounts ContextCache::counts() const {
  const Lock lock(mutex_);
  ContextCacheCounts counts = counts_;
  counts.entries = static_cast<std::int64_t>(entries_.size());
  counts.bytes = num_bytes_;
  if (states_ == nullptr) return counts;
  const ContextCacheCounts of_states = states_->counts();
  counts.grown = of_states.hits;
  counts.evictions += of_states.evictions;
  counts.entries += of_states.entries;
  counts.bytes += of_states.bytes;
  return counts;
}

}  // namespace recsys::ops
