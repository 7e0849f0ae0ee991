#include "tests/core/allocations.h"

#include <cstdlib>
#include <new>
#include <utility>

namespace {

thread_local std::size_t num_allocations = 0;

/// Which allocations of the thread fail.
struct Failing {
  bool is_on = false;
  std::size_t num_good = 0;
  std::size_t num_left = 0;
  bool has_failed = false;
};
thread_local Failing failing;

#ifndef RECSYS_COUNTS_NO_ALLOCATIONS
bool Fails() {
  if (!failing.is_on) return false;
  if (failing.num_good > 0) {
    --failing.num_good;
    return false;
  }
  if (failing.num_left == 0) return false;
  --failing.num_left;
  failing.has_failed = true;
  return true;
}
#endif

}  // namespace

namespace recsys {

std::size_t NumAllocations() { return num_allocations; }

FailingAllocations::FailingAllocations(std::size_t num_good, std::size_t count) {
  failing = {true, num_good, count, false};
}

FailingAllocations::~FailingAllocations() { failing = {}; }

bool FailingAllocations::has_failed() const { return failing.has_failed; }

GoodAllocations::GoodAllocations() : were_failing_(std::exchange(failing.is_on, false)) {}

GoodAllocations::~GoodAllocations() { failing.is_on = were_failing_; }

}  // namespace recsys

#ifndef RECSYS_COUNTS_NO_ALLOCATIONS
// The whole program allocates through these: every form, so that sanitizers see matching pairs.
void* operator new(std::size_t num_bytes, const std::nothrow_t&) noexcept {
  ++num_allocations;
  return Fails() ? nullptr : std::malloc(num_bytes);
}
void* operator new(std::size_t num_bytes) {
  if (void* const memory = operator new(num_bytes, std::nothrow)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#endif
