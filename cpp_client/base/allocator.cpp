#include "base/allocator.h"

#include <cstddef>
#include <cstdlib>
#include <mutex>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace recsys {
namespace {

// 32 MiB is glibc's own upper limit of the mapping threshold on 64-bit machines.
constexpr int kMmapThreshold = 32 << 20;
constexpr int kTrimThreshold = 512 << 20;
constexpr int kTopPad = 64 << 20;
// glibc's own first threshold.
constexpr int kApartThreshold = 128 << 10;
// The end of a thread's arena is returned only when a chunk of at least 64 KiB is freed in it
// (glibc's FASTBIN_CONSOLIDATION_THRESHOLD); malloc_trim does not return it.
constexpr std::size_t kTriggerBytes = 1 << 17;

std::mutex mutex;
// Guarded by the mutex.
bool is_tuned = false;
int num_returning = 0;
int num_apart = 0;

#ifdef __GLIBC__
bool Keep() {
  return mallopt(M_MMAP_THRESHOLD, kMmapThreshold) == 1 &&
         mallopt(M_TRIM_THRESHOLD, kTrimThreshold) == 1 && mallopt(M_TOP_PAD, kTopPad) == 1;
}

/// Makes malloc keep nothing at the end of an arena, while memory is being returned.
void KeepNothing() {
  mallopt(M_TRIM_THRESHOLD, 0);
  mallopt(M_TOP_PAD, 0);
}

void MapApart() { mallopt(M_MMAP_THRESHOLD, kApartThreshold); }

void Trim() { malloc_trim(0); }
#else
bool Keep() { return false; }
void KeepNothing() {}
void MapApart() {}
void Trim() {}
#endif

/// Applies the settings needed now. The mutex must be held.
void Apply() {
  if (!is_tuned) return;
  Keep();
  if (num_returning > 0) KeepNothing();
  if (num_apart > 0) MapApart();
}

}  // namespace

bool TuneMalloc() {
  const std::lock_guard lock(mutex);
  is_tuned = Keep();
  return is_tuned;
}

ReturningMemory::ReturningMemory() {
  const std::lock_guard lock(mutex);
  ++num_returning;
  Apply();
}

ReturningMemory::~ReturningMemory() {
  {
    const std::lock_guard lock(mutex);
    if (is_tuned) {
      // Through a volatile pointer: compilers remove an allocation that is never read.
      void* volatile trigger = std::malloc(kTriggerBytes);
      std::free(trigger);
    }
    --num_returning;
    Apply();
  }
  Trim();
}

MemoryApart::MemoryApart() {
  const std::lock_guard lock(mutex);
  ++num_apart;
  Apply();
}

MemoryApart::~MemoryApart() {
  const std::lock_guard lock(mutex);
  --num_apart;
  Apply();
}

void ReturnMemory() { const ReturningMemory now; }

}  // namespace recsys
