#ifndef RECSYS_ENGINE_CORE_QUEUE_SLOTS_H_
#define RECSYS_ENGINE_CORE_QUEUE_SLOTS_H_

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>

namespace recsys {

/// How many batches the process may run at a time, whatever their models: as many as it has
/// processors. Who finds none free gets one in turn: first in, first out, so that no model keeps
/// the others waiting for longer than a batch each. Thread-safe.
class Slots {
 public:
  /// Gets a slot that it waited for. Called without any lock, from any thread.
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
  /// Of the process; as many as the processors that it may run on, until told otherwise.
  static Slots& Shared();

  /// The processors that the process may use.
  void Set(int num_slots);
  /// No fewer than that: a model's settings ask for more executors than there are processors.
  void SetAtLeast(int num_slots);

  /// True where a slot is free and nobody waits for one; else `waiter` is granted one later.
  bool Take(Waiter* waiter);
  /// True where no slot was taken, and one is now.
  bool TakeIfIdle();
  /// Hands a slot to the first who waits; where nobody does it stays with the caller, and true is
  /// returned.
  bool Keep();
  void Give();
  /// `waiter` waits no more; returns when no call of its Granted is under way.
  void Forget(Waiter* waiter);
  bool has_waiting() const { return num_waiting_.load(std::memory_order_relaxed) > 0; }
  int num_free() const {
    return std::max(num_slots_.load(std::memory_order_relaxed) - num_taken(), 0);
  }
  int num_taken() const { return num_taken_.load(std::memory_order_relaxed); }

 private:
  /// The first who waits, who has got a slot and is to be told; null where nobody waits. With the
  /// lock.
  Waiter* Grant();
  void Tell(Waiter* waiter);
  void GrantFree();

  std::mutex mutex_;
  std::condition_variable told_;
  /// Changed with the lock.
  std::atomic<int> num_slots_;
  std::atomic<int> num_taken_{0};
  std::atomic<int> num_waiting_{0};
  std::deque<Waiter*> waiting_;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_CORE_QUEUE_SLOTS_H_
