#ifndef RECSYS_BASE_ALLOCATOR_H_
#define RECSYS_BASE_ALLOCATOR_H_

namespace recsys {

/// Returns freed memory to the system. recsys-serve lets the C allocator keep it for the next
/// batches (recsys/base/allocator.py): for what is freed for good, such as a model. Takes some
/// milliseconds. Thread-safe.
void ReturnMemory();

}  // namespace recsys

#endif  // RECSYS_BASE_ALLOCATOR_H_
