#ifndef RECSYS_TESTS_CORE_ALLOCATIONS_H_
#define RECSYS_TESTS_CORE_ALLOCATIONS_H_

#include <cstddef>

namespace recsys {

/// How often the calling thread has allocated memory.
std::size_t NumAllocations();

}  // namespace recsys

#endif  // RECSYS_TESTS_CORE_ALLOCATIONS_H_
