#ifndef RECSYS_BASE_ALLOCATOR_H_
#define RECSYS_BASE_ALLOCATOR_H_

#include <cstdlib>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace recsys {

/// Returns freed memory to the system. recsys-serve lets the C allocator keep it for the next
/// batches (recsys/base/allocator.py): for what is freed for good, such as a model. Takes some
/// milliseconds. Thread-safe.
inline void ReturnMemory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace recsys

#endif  // RECSYS_BASE_ALLOCATOR_H_
