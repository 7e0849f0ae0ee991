#ifndef RECSYS_ENGINE_PROTOCOLS_REQUEST_MEMORY_H_
#define RECSYS_ENGINE_PROTOCOLS_REQUEST_MEMORY_H_

#include <cstddef>
#include <mutex>
#include <vector>

#include "engine/core/request.h"

namespace recsys {

/// Memory of requests' lists of inputs, used again by later requests: one thread reads a request
/// and another lets it go, so that it belongs to no thread. Thread-safe; the lock is held for
/// nanoseconds, and what is kept is bounded.
class RequestMemory {
 public:
  /// That of the process. Never destroyed: requests may end as late as they like.
  static RequestMemory& Shared();

  /// Gives a new request empty lists that have room.
  void Take(Request* request);
  /// Takes the lists of a request that nobody reads any more.
  void Give(Request* request);

 private:
  static constexpr std::size_t kMaxKept = 256;
  /// Of inputs of one request; longer lists were an attempt, or a rare model.
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
