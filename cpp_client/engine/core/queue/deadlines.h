#ifndef RECSYS_ENGINE_CORE_QUEUE_DEADLINES_H_
#define RECSYS_ENGINE_CORE_QUEUE_DEADLINES_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "engine/core/request.h"

namespace recsys {

/// Deadlines of requests, earliest first; equal ones in the order they were added. Not thread-safe;
/// owns nothing: a request must be discarded before it is destroyed
/// (serve/engine/reference/batching.py).
///
/// A heap whose requests store their position (Request::deadline_at). Adding takes constant time if
/// deadlines are added in ascending order, as they mostly are, and logarithmic time at worst; so
/// does discarding.
class Deadlines {
 public:
  void Add(Request& request, double deadline_s);
  /// Does nothing if the request is not in the heap.
  void Discard(Request& request);
  /// Infinite if empty.
  double earliest_s() const {
    return heap_.empty() ? std::numeric_limits<double>::infinity() : heap_.front().deadline_s;
  }
  /// Removes and returns the earliest request whose deadline is not after `now_s`; null if there is
  /// none.
  Request* TakePassed(double now_s);
  std::size_t size() const { return heap_.size(); }

 private:
  struct Entry {
    double deadline_s;
    std::uint64_t number;
    Request* request;
  };
  static bool Before(const Entry& a, const Entry& b) {
    return a.deadline_s < b.deadline_s || (a.deadline_s == b.deadline_s && a.number < b.number);
  }
  void Put(std::size_t at, const Entry& entry);
  void Rise(std::size_t at, const Entry& entry);
  void Sink(std::size_t at, const Entry& entry);

  std::vector<Entry> heap_;
  std::uint64_t next_number_ = 0;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_CORE_QUEUE_DEADLINES_H_
