#ifndef RECSYS_BASE_ALLOCATOR_H_
#define RECSYS_BASE_ALLOCATOR_H_

// Tunes the C allocator for servers: freed memory is kept instead of returned to the system
// (recsys/base/allocator.py).
//
// With glibc's defaults every large buffer, such as a worker thread's output, is mapped, faulted in
// page by page and unmapped again, which costs more than the lookup that fills it. The three
// settings only work together. Thread-safe.

namespace recsys {

/// Configures glibc's malloc for the whole process; call it before the first large allocation.
/// Returns whether all settings were accepted: false if the C library has no mallopt.
bool TuneMalloc();

/// While it lives, freed memory is returned to the system, even if TuneMalloc would keep it; so is
/// memory that the calling thread freed before. For large objects that are released for good, such
/// as a model. Its destructor takes some milliseconds, and also returns memory that other threads
/// freed, which must then be faulted in again.
class ReturningMemory {
 public:
  ReturningMemory();
  ~ReturningMemory();
  ReturningMemory(const ReturningMemory&) = delete;
  ReturningMemory& operator=(const ReturningMemory&) = delete;
};

/// While it lives, large allocations get pages of their own, which are returned when they are
/// freed. For large objects that live long and are then released for good, such as a model: in
/// arenas shared with batch buffers and pinned by small allocations, part of their memory would be
/// lost for the life of the process. Meanwhile other threads' large buffers are mapped too, at a
/// higher cost.
class MemoryApart {
 public:
  MemoryApart();
  ~MemoryApart();
  MemoryApart(const MemoryApart&) = delete;
  MemoryApart& operator=(const MemoryApart&) = delete;
};

/// Returns memory that was freed earlier to the system.
void ReturnMemory();

}  // namespace recsys

#endif  // RECSYS_BASE_ALLOCATOR_H_
