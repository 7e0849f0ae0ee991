#ifndef RECSYS_ENGINE_CORE_QUEUE_DEADLINES_H_
#define RECSYS_ENGINE_CORE_QUEUE_DEADLINES_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "engine/core/request.h"

namespace recsys {

/// Deadlines of requests, the earliest first; of equal ones that which was added first. Not
/// thread-safe; owns nothing: a request is discarded before it goes (serve/deadlines.py).
///
/// A heap whose requests know their places (Request::deadline_at). Adding costs a constant where
/// deadlines come in ascending order, as they mostly do, and the logarithm of their number at
/// worst; so does discarding.
class Deadlines {
 public:
  void Add(Request& request, double deadline_s);
  /// Nothing happens where it is not among them.
  void Discard(Request& request);
  /// Infinite where there is none.
  double earliest_s() const {
    return heap_.empty() ? std::numeric_limits<double>::infinity() : heap_.front().deadline_s;
  }
  /// Takes out the earliest whose deadline is not after `now_s`; null where there is none.
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
