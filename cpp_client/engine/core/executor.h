#ifndef RECSYS_ENGINE_CORE_EXECUTOR_H_
#define RECSYS_ENGINE_CORE_EXECUTOR_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "engine/core/queue/batch_queue.h"
#include "engine/core/queue/policy.h"
#include "engine/core/queue/slots.h"
#include "engine/core/servable.h"
#include "engine/core/warm_up.h"

namespace recsys {

class BatchRunner;

/// Runs the batches of one version and hands the answers back: in threads of its own, which are
/// started as they are needed, and in the polling thread (engine/core/policy.h says which).
/// Thread-safe, but for Start, WaitUntilWarm and Close, which belong to one thread, none of its
/// own.
class Executor final : private Slots::Waiter {
 public:
  /// Of `servable`, which must outlive it: its settings say how many batches may run at a time, and
  /// where. `slots` bounds them over all models.
  Executor(Servable& servable, Servable::Deliver deliver, Clock clock,
           Slots& slots = Slots::Shared());
  ~Executor() override;

  /// Starts the first thread, which runs these batches before it takes one.
  void Start(std::vector<WarmUpBatch> warm_up);
  /// Blocks until it has run them. Throws Error (kExecution) where the model failed on one.
  void WaitUntilWarm();

  /// Throws as Servable::Submit. In a thread that polls, the request waits for the end of its turn.
  void Submit(const std::shared_ptr<Request>& request);
  /// Drops a request that waits; false where it does not.
  bool Cancel(Request& request);
  /// Decides about what waits, at the end of a polling thread's turn. Returns when to call again if
  /// the running batches are late; infinite where there is no need.
  double Decide(bool may_run_here);
  /// Runs `function` while no batch runs: every batch sees all of what it changes, or nothing.
  void RunBetweenBatches(const std::function<void()>& function);
  /// Takes no further requests, answers those that were accepted, ends the threads; idempotent.
  void Close();

 private:
  struct Taken {
    Requests requests, expired;
  };

  void Run(std::int64_t number);
  void StartThread();
  std::unique_ptr<BatchRunner> MakeRunner(bool is_first);
  void WarmUp(BatchRunner* runner);
  /// Waits until a batch may start, with a slot; false once closed and empty.
  bool WaitForBatch(std::unique_lock<std::mutex>& lock, bool* has_slot);
  /// Whether a thread that is awake may start a batch; else when it should look again.
  bool MayStart(double* until_s);
  /// Takes a batch and runs it, the lock let go meanwhile.
  void RunBatch(std::unique_lock<std::mutex>& lock, BatchRunner* runner, Taken* taken);
  void RunHere(std::unique_lock<std::mutex>& lock);
  /// Until somebody wakes it, or until then on the clock.
  void Sleep(std::unique_lock<std::mutex>& lock, double until_s);
  /// Wakes or starts a thread for what waits, where there is one and a slot for it.
  void Wake();
  /// The same where a batch may wait to be filled: somebody looks at it in time.
  void WakeToLook();
  void Granted() override;
  void ShowPending();
  void Resume();
  /// Without leave to run a batch in the calling thread.
  BatchPolicy::State StateAt(double now_s) const;
  /// How many rows the caller's batch takes.
  std::int64_t ShareOf(BatchPolicy::State state) const;
  std::size_t max_threads() const;

  Servable& servable_;
  const Servable::Deliver deliver_;
  const Clock clock_;
  Slots& slots_;

  std::mutex mutex_;
  /// Threads that wait for batches; whoever waits for them to pause; for them to be warm.
  std::condition_variable ready_, paused_, warm_;
  BatchQueue queue_;
  BatchPolicy policy_;
  bool is_closed_ = false;
  bool is_pausing_ = false;
  /// Whether a polling thread will call Decide at the end of its turn.
  bool is_held_ = false;
  int num_sleeping_ = 0;
  /// Whether a slot was taken for a thread that is being woken or started.
  bool is_waking_ = false;
  double woken_s_ = 0;
  /// When one that sleeps looks at the queue by itself; infinite where that is not known.
  double looks_at_s_ = std::numeric_limits<double>::infinity();
  bool is_warm_ = false;
  std::vector<WarmUpBatch> warm_up_;
  std::optional<std::string> warm_up_error_;
  std::vector<std::thread> threads_;
  /// Of the polling thread that runs a batch here.
  std::unique_ptr<BatchRunner> runner_here_;
  Taken taken_here_;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_CORE_EXECUTOR_H_
