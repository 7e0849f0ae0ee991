#ifndef RECSYS_ENGINE_CORE_EXECUTOR_SLOTS_H_
#define RECSYS_ENGINE_CORE_EXECUTOR_SLOTS_H_

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>

namespace recsys {

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
  /// Removes `waiter`; returns once no call of its Granted is in progress.
  void Forget(Waiter* waiter);
  bool has_waiting() const { return num_waiting_.load(std::memory_order_relaxed) > 0; }
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

  std::mutex mutex_;
  std::condition_variable told_;
  /// Modified under the lock.
  std::atomic<int> num_slots_;
  std::atomic<int> num_taken_{0};
  std::atomic<int> num_waiting_{0};
  std::deque<Waiter*> waiting_;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_CORE_EXECUTOR_SLOTS_H_
