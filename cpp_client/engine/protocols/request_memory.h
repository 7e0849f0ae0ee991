#ifndef RECSYS_ENGINE_PROTOCOLS_REQUEST_MEMORY_H_
#define RECSYS_ENGINE_PROTOCOLS_REQUEST_MEMORY_H_

#include <cstddef>
#include <mutex>
#include <vector>

#include "engine/core/request.h"

namespace recsys {

/// Recycles the memory of requests' input lists. It belongs to no thread, since one thread reads a
/// request and another releases it. Thread-safe; the lock is held for nanoseconds, and the amount
/// kept is bounded.
class RequestMemory {
 public:
  /// The process's instance. Never destroyed: requests may end at any time.
  static RequestMemory& Shared();

  /// Gives a new request empty lists with capacity.
  void Take(Request* request);
  /// Takes the lists of a request that is no longer read.
  void Give(Request* request);

 private:
  static constexpr std::size_t kMaxKept = 256;
  /// Maximum inputs per request; longer lists are abuse, or a rare model.
  static constexpr std::size_t kMaxInputs = 2048;

  struct Lists {
    RawRequest raw;
    CheckedRequest checked;
  };

  std::mutex mutex_;
  std::vector<Lists> kept_;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_PROTOCOLS_REQUEST_MEMORY_H_
