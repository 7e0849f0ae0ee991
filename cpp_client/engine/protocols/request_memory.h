#ifndef RECSYS_ENGINE_PROTOCOLS_REQUEST_MEMORY_H_
#define RECSYS_ENGINE_PROTOCOLS_REQUEST_MEMORY_H_

#include <cstddef>
#include <mutex>
#include <vector>

#include "base/stripes.h"
#include "engine/core/request.h"

namespace recsys {

/// Recycles the memory of requests' input lists: a thread that releases a request gives them back
/// to the stripe of the thread that has read it. Thread-safe; locks are held for nanoseconds, and
/// the amount kept is bounded.
class RequestMemory {
 public:
  /// The process's instance. Never destroyed: requests may end at any time.
  static RequestMemory& Shared();

  /// Gives a new request empty lists with capacity. Returns the stripe, for Give.
  std::size_t Take(Request* request);
  /// Takes the lists of a request that is no longer read.
  void Give(Request* request, std::size_t stripe);

 private:
  /// Of a stripe.
  static constexpr std::size_t kMaxKept = 256;
  /// Maximum inputs per request; longer lists are abuse, or a rare model.
  static constexpr std::size_t kMaxInputs = 2048;

  struct Lists {
    RawRequest raw;
    CheckedRequest checked;
  };

  struct Kept {
    std::mutex mutex;
    std::vector<Lists> lists;
  };

  Striped<Kept> kept_;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_PROTOCOLS_REQUEST_MEMORY_H_
