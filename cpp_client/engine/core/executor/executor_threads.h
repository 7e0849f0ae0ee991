#ifndef RECSYS_ENGINE_CORE_EXECUTOR_EXECUTOR_THREADS_H_
#define RECSYS_ENGINE_CORE_EXECUTOR_EXECUTOR_THREADS_H_

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace recsys {

/// Names the calling thread, as far as the system keeps names.
void NameThread(const std::string& name);
/// Restricts the calling thread to these processors. Throws Error (kExecution) if that fails.
void StayOn(const std::vector<std::int64_t>& cpus);
/// Returns how often another thread has preempted the calling one.
std::int64_t NumPreempted();

/// The threads of one executor: started on demand, asleep while they have nothing to do. Whoever
/// wakes one hands a slot over to it; at most one is being woken at a time, and takes all waiting
/// requests. The caller holds the executor's lock, by ExecutorLock where it wakes threads, except
/// for Join.
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
  /// Wakes a sleeping thread or starts one, which takes over a slot of the caller. `now_s`: the
  /// time on the clock, from which Sleep counts how long it took.
  void Wake(double now_s);
  /// Takes over the slot for the thread that is being woken, if there is one.
  bool TakeSlot();
  /// Wakes a thread without a slot, if all would sleep for longer than that.
  void WakeBy(double at_s);
  /// Wakes all, without slots.
  void WakeAll() { notice_ = Notice::kAll; }
  /// Sleeps until woken, or until that time. Returns how long a wake-up with a slot took; none if
  /// there was none.
  std::optional<double> Sleep(std::unique_lock<std::mutex>& lock, double until_s);

 private:
  friend class ExecutorLock;
  /// Which sleeping threads are notified.
  enum class Notice { kNone, kOne, kAll };

  void NoteOne() { notice_ = std::max(notice_, Notice::kOne); }
  void Notify(Notice notice);

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
  /// For the threads that were woken since the lock was taken.
  Notice notice_ = Notice::kNone;
};

/// An executor's lock. The threads that are woken under it are notified once it is released: that
/// takes a system call, and they could only wait for the lock.
class ExecutorLock {
 public:
  ExecutorLock(std::mutex& mutex, ExecutorThreads& threads) : lock_(mutex), threads_(threads) {}
  ~ExecutorLock() {
    if (lock_.owns_lock()) Unlock();
  }
  ExecutorLock(const ExecutorLock&) = delete;
  ExecutorLock& operator=(const ExecutorLock&) = delete;

  void Lock() { lock_.lock(); }
  void Unlock() {
    const auto notice = std::exchange(threads_.notice_, ExecutorThreads::Notice::kNone);
    lock_.unlock();
    threads_.Notify(notice);
  }
  /// Lets the calling thread sleep: ExecutorThreads::Sleep.
  std::optional<double> Sleep(double until_s) { return threads_.Sleep(lock_, until_s); }

 private:
  std::unique_lock<std::mutex> lock_;
  ExecutorThreads& threads_;
};

/// Limits how many batches the process runs concurrently, across all models: one per processor. If
/// none is free, slots are granted in turn: first in, first out, so that no model makes the others
/// wait for more than one batch each. Thread-safe.
class Slots {
 public:
  /// Called with a slot it waited for; without any lock, from any thread.
  class Waiter {
   public:
    virtual ~Waiter() = default;
    virtual void Granted() = 0;

   private:
    friend class Slots;
    bool is_waiting_ = false;
    int num_calls_ = 0;
  };

  explicit Slots(int num_slots) : num_slots_(num_slots) {}
  /// The process's slots: one per processor it may run on, unless set otherwise.
  static Slots& Shared();

  /// Sets the number of processors that the process may use.
  void Set(int num_slots);
  /// Ensures at least that many: a model's settings may ask for more executors than there are
  /// processors.
  void SetAtLeast(int num_slots);

  /// Returns true if a slot is free and no other waits for one; otherwise `waiter` is granted one
  /// later.
  bool Take(Waiter* waiter);
  /// Takes a slot and returns true, if none is taken.
  bool TakeIfIdle();
  /// Passes a slot to the first waiter; if there is none, the caller keeps it and true is returned.
  bool Keep();
  void Release();
  /// Releases a slot and returns true, if no other waits for one. For callers that hold a lock:
  /// calls no Granted.
  bool ReleaseUnlessWaiting();
  /// Removes `waiter`; returns once no call of its Granted is in progress.
  void Forget(Waiter* waiter);
  bool has_waiting() const { return num_waiting_.load() > 0; }
  int num_free() const {
    return std::max(num_slots_.load(std::memory_order_relaxed) - num_taken(), 0);
  }
  int num_taken() const { return num_taken_.load(std::memory_order_relaxed); }

 private:
  /// Gives a slot to the first waiter, which must then be notified; returns null if there is none.
  /// The lock must be held.
  Waiter* Grant();
  void Tell(Waiter* waiter);
  void GrantFree();
  /// Takes a slot and returns true, if less than so many are taken. Needs no lock.
  bool TakeBelow(int num);

  std::mutex mutex_;
  std::condition_variable told_;
  /// Modified under the lock.
  std::atomic<int> num_slots_;
  /// Slots are taken and released without the lock while none waits. Whoever begins to wait looks
  /// for a free one afterwards, and whoever releases one looks for waiters afterwards: one of them
  /// sees the other.
  std::atomic<int> num_taken_{0};
  /// Modified under the lock.
  std::atomic<int> num_waiting_{0};
  std::deque<Waiter*> waiting_;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_CORE_EXECUTOR_EXECUTOR_THREADS_H_
