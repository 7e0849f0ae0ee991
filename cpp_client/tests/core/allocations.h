#ifndef RECSYS_TESTS_CORE_ALLOCATIONS_H_
#define RECSYS_TESTS_CORE_ALLOCATIONS_H_

#include <cstddef>
#include <limits>

// The sanitizer for threads brings functions of its own, beside which nothing can be counted.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define RECSYS_COUNTS_NO_ALLOCATIONS
#endif
#endif

namespace recsys {

#ifdef RECSYS_COUNTS_NO_ALLOCATIONS
constexpr bool kCountsAllocations = false;
#else
constexpr bool kCountsAllocations = true;
#endif

/// How often the calling thread has allocated memory; 0 if that is not counted.
std::size_t NumAllocations();

/// While it lives, allocations of the calling thread fail: `count` of them, after the first
/// `num_good`. They do not nest.
class FailingAllocations {
 public:
  explicit FailingAllocations(std::size_t num_good,
                              std::size_t count = std::numeric_limits<std::size_t>::max());
  ~FailingAllocations();
  FailingAllocations(const FailingAllocations&) = delete;
  FailingAllocations& operator=(const FailingAllocations&) = delete;

  /// Whether one has failed.
  bool has_failed() const;
};

/// While it lives, the calling thread's allocations succeed, and are not counted as good ones: for
/// the tests' own bookkeeping.
class GoodAllocations {
 public:
  GoodAllocations();
  ~GoodAllocations();
  GoodAllocations(const GoodAllocations&) = delete;
  GoodAllocations& operator=(const GoodAllocations&) = delete;

 private:
  const bool were_failing_;
};

}  // namespace recsys

#endif  // RECSYS_TESTS_CORE_ALLOCATIONS_H_
