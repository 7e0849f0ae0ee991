#ifndef RECSYS_ENGINE_HTTP2_POLLING_TIMERS_H_
#define RECSYS_ENGINE_HTTP2_POLLING_TIMERS_H_

#include <limits>
#include <set>
#include <utility>

namespace recsys::http2 {

/// Something that is due at a time. In at most one Timers, which it has to leave before it dies.
class Timed {
 public:
  virtual ~Timed() = default;
  virtual void OnDue(double now_s) = 0;

 private:
  friend class Timers;
  double due_s_ = std::numeric_limits<double>::infinity();
};

/// What is due when, on the clock of MonotonicSeconds. Not thread-safe.
class Timers {
 public:
  /// Replaces an earlier time; infinity takes it out.
  void Set(Timed* timed, double due_s) {
    if (due_s == timed->due_s_) return;
    Remove(timed);
    if (due_s == std::numeric_limits<double>::infinity()) return;
    timed->due_s_ = due_s;
    due_.emplace(due_s, timed);
  }
  /// The same where it is earlier than before.
  void SetEarlier(Timed* timed, double due_s) {
    if (due_s < timed->due_s_) Set(timed, due_s);
  }
  void Remove(Timed* timed) {
    if (timed->due_s_ == std::numeric_limits<double>::infinity()) return;
    due_.erase({timed->due_s_, timed});
    timed->due_s_ = std::numeric_limits<double>::infinity();
  }
  /// Calls OnDue of all that is due; each is taken out before.
  void Fire(double now_s) {
    while (!due_.empty() && due_.begin()->first <= now_s) {
      Timed* const timed = due_.begin()->second;
      Remove(timed);
      timed->OnDue(now_s);
    }
  }
  /// Infinity where nothing is due.
  double next_s() const {
    return due_.empty() ? std::numeric_limits<double>::infinity() : due_.begin()->first;
  }

 private:
  std::set<std::pair<double, Timed*>> due_;
};

}  // namespace recsys::http2

#endif  // RECSYS_ENGINE_HTTP2_POLLING_TIMERS_H_
