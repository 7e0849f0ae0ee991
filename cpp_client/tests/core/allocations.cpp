#include "tests/core/allocations.h"

#include <cstdlib>
#include <new>

namespace {

thread_local std::size_t num_allocations = 0;

}  // namespace

namespace recsys {

std::size_t NumAllocations() { return num_allocations; }

}  // namespace recsys

#ifndef RECSYS_COUNTS_NO_ALLOCATIONS
// The whole program allocates through these: every form, so that sanitizers see matching pairs.
void* operator new(std::size_t num_bytes, const std::nothrow_t&) noexcept {
  ++num_allocations;
  return std::malloc(num_bytes);
}
void* operator new(std::size_t num_bytes) {
  if (void* const memory = operator new(num_bytes, std::nothrow)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#endif
