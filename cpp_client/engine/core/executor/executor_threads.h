#ifndef RECSYS_ENGINE_CORE_EXECUTOR_EXECUTOR_THREADS_H_
#define RECSYS_ENGINE_CORE_EXECUTOR_EXECUTOR_THREADS_H_

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace recsys {

/// The threads of one executor: started on demand, asleep while they have nothing to do. Whoever
/// wakes one hands a slot over to it; at most one is being woken at a time, and takes all waiting
/// requests. The caller holds the executor's lock, except for Join.
class ExecutorThreads {
 public:
  /// `run`: what a thread does that is started by Wake; called with its number.
  ExecutorThreads(std::size_t most, Clock clock, std::function<void(std::size_t)> run)
      : most_(most), clock_(std::move(clock)), run_(std::move(run)) {}

  void Start(std::thread thread) { threads_.push_back(std::move(thread)); }
  /// Waits until all have ended.
  void Join();

  std::size_t most() const { return most_; }
  bool is_waking() const { return woken_s_.has_value(); }
  bool has_sleeping() const { return num_sleeping_ > 0; }
  /// Whether Wake may be called.
  bool CanWake() const { return !is_waking() && (has_sleeping() || threads_.size() < most_); }
  /// Wakes a sleeping thread or starts one, which takes over a slot of the caller.
  void Wake();
  /// Takes over the slot for the thread that is being woken, if there is one.
  bool TakeSlot();
  /// Wakes a thread without a slot, if all would sleep for longer than that.
  void WakeBy(double at_s);
  /// Wakes all, without slots.
  void WakeAll() { woken_.notify_all(); }
  /// Sleeps until woken, or until that time. Returns how long a wake-up with a slot took; none if
  /// there was none.
  std::optional<double> Sleep(std::unique_lock<std::mutex>& lock, double until_s);

 private:
  const std::size_t most_;
  const Clock clock_;
  const std::function<void(std::size_t)> run_;
  std::vector<std::thread> threads_;
  std::condition_variable woken_;
  int num_sleeping_ = 0;
  /// When the thread was woken that is to take a slot over; none if no slot is handed over.
  std::optional<double> woken_s_;
  /// When the first sleeping thread wakes by itself; infinite if none does.
  double alarm_s_ = kNever;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_CORE_EXECUTOR_EXECUTOR_THREADS_H_
