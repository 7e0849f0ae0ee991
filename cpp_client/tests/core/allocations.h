#ifndef RECSYS_TESTS_CORE_ALLOCATIONS_H_
#define RECSYS_TESTS_CORE_ALLOCATIONS_H_

#include <cstddef>

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

}  // namespace recsys

#endif  // RECSYS_TESTS_CORE_ALLOCATIONS_H_
