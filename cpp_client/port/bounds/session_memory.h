#ifndef RECSYS_PORT_BOUNDS_SESSION_MEMORY_H_
#define RECSYS_PORT_BOUNDS_SESSION_MEMORY_H_

#include <nghttp2/nghttp2.h>

#include <cstddef>
#include <cstdint>

namespace recsys::http2 {

/// The allocator of one nghttp2 session, which counts what the session holds: streams, frames that
/// wait, header tables, buffers. Not thread-safe; outlives the session.
class SessionMemory {
 public:
  SessionMemory() : functions_{this, Allocate, Free, AllocateZeros, Reallocate} {}
  SessionMemory(const SessionMemory&) = delete;
  SessionMemory& operator=(const SessionMemory&) = delete;

  nghttp2_mem* functions() { return &functions_; }
  /// As the system's allocator counts them.
  std::int64_t num_bytes() const { return num_bytes_; }

 private:
  static void* Allocate(std::size_t size, void* self);
  static void* AllocateZeros(std::size_t num, std::size_t size, void* self);
  static void* Reallocate(void* block, std::size_t size, void* self);
  static void Free(void* block, void* self);
  static SessionMemory& Of(void* self) { return *static_cast<SessionMemory*>(self); }

  nghttp2_mem functions_;
  std::int64_t num_bytes_ = 0;
};

}  // namespace recsys::http2

#endif  // RECSYS_PORT_BOUNDS_SESSION_MEMORY_H_
