// Values of contexts that are kept: which are found again, which leave, and that none is of rows
// that have changed.

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ops/context_cache.h"

namespace recsys::ops {
namespace {

constexpr std::int64_t kCount = 16;

/// Returns a key of bytes, which live as long as the text. Hashes of contexts may be anything.
ContextKey KeyOf(const std::string& text, std::uint64_t hash) { return {text, hash}; }
ContextKey KeyOf(const std::string& text) { return KeyOf(text, std::hash<std::string>()(text)); }

ContextCache::Values ValuesOf(float number) {
  std::shared_ptr<float[]> values(new float[kCount]);
  for (std::int64_t i = 0; i < kCount; ++i) values[i] = number + static_cast<float>(i);
  return values;
}

/// A cache and a graph that uses it.
struct OneGraph {
  explicit OneGraph(std::int64_t max_bytes) : cache(max_bytes), owner(cache.AddOwner()) {}

  /// Returns the first number that is held of a key; -1 if nothing is.
  float Find(const ContextKey& key, std::uint64_t* generation = nullptr) {
    const ContextCache::Found found = cache.Find(owner, {key});
    if (generation != nullptr) *generation = found.generation;
    return found.values[0] == nullptr ? -1.0F : found.values[0][0];
  }
  void Add(const ContextKey& key, float number) {
    std::uint64_t generation = 0;
    Find(key, &generation);
    cache.Add(owner, generation, key, ValuesOf(number), kCount);
  }

  ContextCache cache;
  const std::uint64_t owner;
};

TEST(ContextCache, FindsWhatWasAdded) {
  OneGraph graph(1 << 20);
  const std::string a = "a", b = "b";
  graph.Add(KeyOf(a), 1);
  EXPECT_EQ(graph.Find(KeyOf(a)), 1);
  EXPECT_EQ(graph.Find(KeyOf(b)), -1);
  const ContextCacheCounts counts = graph.cache.counts();
  EXPECT_EQ(counts.hits, 1);
  EXPECT_EQ(counts.misses, 2);
  EXPECT_EQ(counts.evictions, 0);
  EXPECT_EQ(counts.entries, 1);
  EXPECT_GT(counts.bytes, kCount * 4);
}

TEST(ContextCache, ComparesBytesWhereHashesAreEqual) {
  OneGraph graph(1 << 20);
  const std::string a = "a", b = "b";
  graph.Add(KeyOf(a, 7), 1);
  EXPECT_EQ(graph.Find(KeyOf(b, 7)), -1);
  graph.Add(KeyOf(b, 7), 2);
  EXPECT_EQ(graph.Find(KeyOf(b, 7)), 2);
  EXPECT_EQ(graph.Find(KeyOf(a, 7)), -1);
  EXPECT_EQ(graph.cache.counts().entries, 1);
}

TEST(ContextCache, GivesAGraphWhatItComputedItself) {
  OneGraph graph(1 << 20);
  const std::string a = "a";
  graph.Add(KeyOf(a), 1);
  const std::uint64_t other = graph.cache.AddOwner();
  EXPECT_EQ(graph.cache.Find(other, {KeyOf(a)}).values[0], nullptr);
}

TEST(ContextCache, DropsWhatWasUsedLongestAgo) {
  OneGraph graph(1 << 20);
  const std::string a = "a", b = "b", c = "c";
  graph.Add(KeyOf(a), 1);
  const std::int64_t of_one = graph.cache.counts().bytes;
  OneGraph two(2 * of_one);
  two.Add(KeyOf(a), 1);
  two.Add(KeyOf(b), 2);
  EXPECT_EQ(two.Find(KeyOf(a)), 1);
  two.Add(KeyOf(c), 3);
  EXPECT_EQ(two.Find(KeyOf(b)), -1);
  EXPECT_EQ(two.Find(KeyOf(a)), 1);
  EXPECT_EQ(two.Find(KeyOf(c)), 3);
  const ContextCacheCounts counts = two.cache.counts();
  EXPECT_EQ(counts.evictions, 1);
  EXPECT_EQ(counts.entries, 2);
  EXPECT_EQ(counts.bytes, 2 * of_one);
}

TEST(ContextCache, KeepsNothingThatIsLargerThanItself) {
  OneGraph graph(100);
  const std::string a = "a";
  EXPECT_FALSE(graph.cache.Fits(KeyOf(a), kCount));
  graph.Add(KeyOf(a), 1);
  EXPECT_EQ(graph.cache.counts().entries, 0);
  EXPECT_EQ(graph.cache.counts().evictions, 0);
}

TEST(ContextCache, StaysWithinItsBytesUnderAStorm) {
  constexpr std::int64_t kMost = 10000;
  OneGraph graph(kMost);
  for (int i = 0; i < 2000; ++i) {
    const std::string key = std::to_string(i) + std::string(static_cast<std::size_t>(i % 300), '.');
    graph.Add(KeyOf(key), static_cast<float>(i));
    ASSERT_LE(graph.cache.counts().bytes, kMost);
    ASSERT_EQ(graph.Find(KeyOf(key)), i);
  }
  const ContextCacheCounts counts = graph.cache.counts();
  EXPECT_EQ(counts.evictions + counts.entries, 2000);
  EXPECT_GT(counts.entries, 5);
}

TEST(ContextCache, ForgetsAllOnceRowsHaveChanged) {
  OneGraph graph(1 << 20);
  const std::string a = "a", b = "b";
  graph.Add(KeyOf(a), 1);
  std::uint64_t before = 0;
  EXPECT_EQ(graph.Find(KeyOf(b), &before), -1);
  graph.cache.Clear();
  EXPECT_EQ(graph.Find(KeyOf(a)), -1);
  // Computed of the rows before.
  graph.cache.Add(graph.owner, before, KeyOf(b), ValuesOf(2), kCount);
  EXPECT_EQ(graph.Find(KeyOf(b)), -1);
  const ContextCacheCounts counts = graph.cache.counts();
  EXPECT_EQ(counts.entries, 0);
  EXPECT_EQ(counts.bytes, 0);
  EXPECT_EQ(counts.evictions, 0);
  graph.Add(KeyOf(b), 3);
  EXPECT_EQ(graph.Find(KeyOf(b)), 3);
}

TEST(ContextCache, CountsFromTheResetOn) {
  OneGraph graph(1 << 20);
  const std::string a = "a";
  graph.Add(KeyOf(a), 1);
  graph.cache.ResetCounts();
  graph.Find(KeyOf(a));
  const ContextCacheCounts counts = graph.cache.counts();
  EXPECT_EQ(counts.hits, 1);
  EXPECT_EQ(counts.misses, 0);
  EXPECT_EQ(counts.entries, 1);
}

TEST(ContextCache, KeepsValuesAliveThatAreStillRead) {
  OneGraph graph(1 << 20);
  const std::string a = "a";
  graph.Add(KeyOf(a), 1);
  const ContextCache::Found found = graph.cache.Find(graph.owner, {KeyOf(a)});
  graph.cache.Clear();
  EXPECT_EQ(found.values[0][kCount - 1], kCount);
}

TEST(ContextCache, NeverGivesOldValuesToThreads) {
  // A context's value is the state of the rows that it was computed of. Each thread reads rows
  // behind a lock that the writer excludes, as executors do, but adds without it.
  OneGraph graph(4000);
  std::vector<std::string> keys;
  for (int i = 0; i < 20; ++i) keys.push_back("context " + std::to_string(i));
  std::mutex rows;
  float state = 0;
  std::atomic<bool> is_done{false};
  std::atomic<int> num_wrong{0};
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937 random(seed);
      while (!is_done) {
        const ContextKey key = KeyOf(keys[random() % keys.size()]);
        std::uint64_t generation = 0;
        float computed = 0;
        {
          const std::lock_guard<std::mutex> lock(rows);
          const float held = graph.Find(key, &generation);
          if (held != -1 && held != state) ++num_wrong;
          computed = state;
        }
        graph.cache.Add(graph.owner, generation, key, ValuesOf(computed), kCount);
      }
    });
  }
  for (int i = 0; i < 200; ++i) {
    std::this_thread::yield();
    const std::lock_guard<std::mutex> lock(rows);
    graph.cache.Clear();
    ++state;
  }
  is_done = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_wrong, 0);
  EXPECT_LE(graph.cache.counts().bytes, 4000);
}

}  // namespace
}  // namespace recsys::ops
