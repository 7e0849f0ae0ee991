#ifndef RECSYS_PORT_POLLING_TIMERS_H_
#define RECSYS_PORT_POLLING_TIMERS_H_

#include <limits>
#include <set>
#include <utility>

#include "base/clock.h"

namespace recsys::http2 {

/// An object with a due time. In at most one Timers, which it must leave before it is destroyed.
class Timed {
 public:
  virtual ~Timed() = default;
  virtual void OnDue(double now_s) = 0;

 private:
  friend class Timers;
  double due_s_ = kNever;
};

/// Due times, on the clock of MonotonicSeconds. Not thread-safe.
class Timers {
 public:
  /// Replaces an earlier time; infinity removes it.
  void Set(Timed* timed, double due_s) {
    if (due_s == timed->due_s_) return;
    Remove(timed);
    if (due_s == kNever) return;
    timed->due_s_ = due_s;
    due_.emplace(due_s, timed);
  }
  /// Like Set, but only if the new time is earlier.
  void SetEarlier(Timed* timed, double due_s) {
    if (due_s < timed->due_s_) Set(timed, due_s);
  }
  void Remove(Timed* timed) {
    if (timed->due_s_ == kNever) return;
    due_.erase({timed->due_s_, timed});
    timed->due_s_ = kNever;
  }
  /// Calls OnDue of what is due, after removing it, earliest first.
  void Fire(double now_s, int at_most = std::numeric_limits<int>::max()) {
    for (; at_most > 0 && !due_.empty() && due_.begin()->first <= now_s; --at_most) {
      Timed* const timed = due_.begin()->second;
      Remove(timed);
      timed->OnDue(now_s);
    }
  }
  /// Infinity if nothing is scheduled.
  double next_s() const { return due_.empty() ? kNever : due_.begin()->first; }

 private:
  std::set<std::pair<double, Timed*>> due_;
};

}  // namespace recsys::http2

#endif  // RECSYS_PORT_POLLING_TIMERS_H_
