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

/// Runs the batches of one version and delivers the answers: in its own threads, which are started
/// on demand, and in the polling thread (engine/core/queue/policy.h decides). Thread-safe, except
/// for Start, WaitUntilWarm and Close, which must be called from one thread, not one of its own.
class Executor final : private Slots::Waiter {
 public:
  /// `servable` must outlive the executor; its settings say how many batches may run concurrently,
  /// and on which processors. `slots` bounds them across all models.
  Executor(Servable& servable, Servable::Deliver deliver, Clock clock,
           Slots& slots = Slots::Shared());
  ~Executor() override;

  /// Starts the first thread, which runs these batches before any other.
  void Start(std::vector<WarmUpBatch> warm_up);
  /// Blocks until the warm-up has run. Throws Error (kExecution) if the model failed on a batch.
  void WaitUntilWarm();

  /// Throws like Servable::Submit. In a polling thread, the request waits for the end of its turn.
  void Submit(const std::shared_ptr<Request>& request);
  /// Drops a waiting request; returns false if it does not wait.
  bool Cancel(Request& request);
  /// Decides about the waiting requests, at the end of a polling thread's turn. Returns when to
  /// call again in case the running batches are late; infinite if not needed.
  double Decide(bool may_run_here);
  /// Runs `function` while no batch runs: every batch sees all of its changes, or none.
  void RunBetweenBatches(const std::function<void()>& function);
  /// Refuses further requests, answers the accepted ones, ends the threads; idempotent.
  void Close();

 private:
  struct Taken {
    Requests requests, expired;
  };

  void Run(std::int64_t number);
  void StartThread();
  std::unique_ptr<BatchRunner> MakeRunner(bool is_first);
  void WarmUp(BatchRunner* runner);
  /// Waits until a batch may start, and holds a slot; returns false once closed and empty.
  bool WaitForBatch(std::unique_lock<std::mutex>& lock, bool* has_slot);
  /// Whether an awake thread may start a batch; if not, sets when to check again.
  bool MayStart(double* until_s);
  /// Takes a batch and runs it; releases the lock meanwhile.
  void RunBatch(std::unique_lock<std::mutex>& lock, BatchRunner* runner, Taken* taken);
  /// Runs the taken requests; releases the lock meanwhile.
  void RunTaken(std::unique_lock<std::mutex>& lock, BatchRunner* runner, Taken* taken, int number);
  void RunHere(std::unique_lock<std::mutex>& lock);
  /// Whether requests of light clients come next, and form a short batch of their own: they do not
  /// wait for what others compute.
  bool IsLightNext() const;
  /// Whether the calling polling thread should run them.
  bool IsLightForHere() const;
  /// Runs them beside the running batches, without a slot: they take no longer than a wake-up.
  void RunLightHere(std::unique_lock<std::mutex>& lock);
  BatchRunner* RunnerHere();
  /// Sleeps until woken, or until that time on the clock.
  void Sleep(std::unique_lock<std::mutex>& lock, double until_s);
  /// Wakes or starts a thread for the waiting requests, if there is one and a free slot.
  void Wake();
  /// Wakes a thread in time for a batch that may wait to be filled.
  void WakeToLook();
  void Granted() override;
  void ShowPending();
  void Resume();
  /// Returns the state, without permission to run a batch in the calling thread.
  BatchPolicy::State StateAt(double now_s) const;
  /// Returns how many rows the caller's batch takes.
  std::int64_t ShareOf(BatchPolicy::State state) const;
  std::size_t max_threads() const;

  Servable& servable_;
  const Servable::Deliver deliver_;
  const Clock clock_;
  Slots& slots_;

  std::mutex mutex_;
  /// For threads waiting for batches; for callers waiting for them to pause; for the end of the
  /// warm-up.
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
  /// When a sleeping thread checks the queue by itself; infinite if unknown.
  double looks_at_s_ = std::numeric_limits<double>::infinity();
  bool is_warm_ = false;
  std::vector<WarmUpBatch> warm_up_;
  std::optional<std::string> warm_up_error_;
  std::vector<std::thread> threads_;
  /// Used by the polling thread that runs a batch here.
  std::unique_ptr<BatchRunner> runner_here_;
  bool is_running_here_ = false;
  /// When a polling thread may run requests of light clients again.
  double light_here_at_s_ = 0;
  Taken taken_here_;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_CORE_EXECUTOR_H_
