#ifndef RECSYS_BASE_ALLOCATOR_H_
#define RECSYS_BASE_ALLOCATOR_H_

// The C allocator, set for servers: keep what was freed instead of returning it
// (recsys/allocator.py).
//
// With glibc's defaults every large buffer, such as a worker thread's output, is mapped, faulted in
// page by page and unmapped again, which costs more than the lookup that fills it. The three
// settings only work together. Thread-safe.

namespace recsys {

/// Sets glibc's malloc for the whole process; to be called before the first large allocation.
/// Whether all settings were taken: false where the C library has no mallopt.
bool TuneMalloc();

/// While it lives, what is freed goes back to the system, also where TuneMalloc would have it kept;
/// so does what the calling thread has freed before. For large things that leave for good, such as
/// a model. Its end costs some milliseconds, in which other threads' freed memory goes back too,
/// and is faulted in again.
class ReturningMemory {
 public:
  ReturningMemory();
  ~ReturningMemory();
  ReturningMemory(const ReturningMemory&) = delete;
  ReturningMemory& operator=(const ReturningMemory&) = delete;
};

/// While it lives, what is allocated has pages of its own if it is large, and gives them back when
/// it is freed. For what stays for long and leaves for good, such as a model: among the buffers of
/// batches, in arenas that small things pin, a part of it would be lost for as long as the process
/// lives. Other threads' large buffers are mapped too meanwhile, and cost the more.
class MemoryApart {
 public:
  MemoryApart();
  ~MemoryApart();
  MemoryApart(const MemoryApart&) = delete;
  MemoryApart& operator=(const MemoryApart&) = delete;
};

/// Returns what was freed already.
void ReturnMemory();

}  // namespace recsys

#endif  // RECSYS_BASE_ALLOCATOR_H_
