#ifndef RECSYS_PORT_BOUNDS_SESSION_MEMORY_H_
#define RECSYS_PORT_BOUNDS_SESSION_MEMORY_H_

#include <nghttp2/nghttp2.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace recsys::http2 {

/// A rate with a burst: tokens accumulate over time and are returned for work done. Not
/// thread-safe.
class TokenBucket {
 public:
  TokenBucket(double per_s, double burst, double now_s)
      : per_s_(per_s), burst_(burst), tokens_(burst), filled_s_(now_s) {}

  /// Takes tokens; returns whether there were enough.
  bool Take(double tokens, double now_s) {
    if (std::isinf(per_s_)) return true;
    if (tokens > tokens_) {
      tokens_ = std::min(burst_, tokens_ + (now_s - filled_s_) * per_s_);
      filled_s_ = now_s;
    }
    tokens_ -= tokens;
    return tokens_ >= 0;
  }
  void Give(double tokens) { tokens_ = std::min(burst_, tokens_ + tokens); }

 private:
  double per_s_;
  double burst_;
  double tokens_;
  double filled_s_;
};

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
