#ifndef RECSYS_ENGINE_CORE_EXECUTOR_EXECUTOR_H_
#define RECSYS_ENGINE_CORE_EXECUTOR_EXECUTOR_H_

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "engine/core/executor/batch_runner.h"
#include "engine/core/executor/executor_threads.h"
#include "engine/core/executor/warm_up.h"
#include "engine/core/queue/batch_queue.h"
#include "engine/core/queue/policy.h"
#include "engine/core/servable.h"
#include "recsys/span.h"

namespace recsys {

/// A request that was not queued.
struct Refusal {
  /// Throws Error (kDraining) or QueueFullError, or what made the queue fail.
  [[noreturn]] void Throw() const;

  std::shared_ptr<Request> request;
  /// If the queue is full, else if it has failed; else the executor is closed.
  std::optional<BatchQueue::Full> full = {};
  std::exception_ptr failure = {};
};

/// Runs the batches of one version and delivers the answers. The rule:
///
/// 1. A request joins the queue. Then Schedule asks the policy about all waiting requests: at once,
///    or for requests that a polling thread reads, when it has read all that it can.
/// 2. The policy lets them run in the polling thread, wakes an executor's thread, or leaves them to
///    the running batches. Requests left so are scheduled again if those batches are late.
/// 3. A thread of the executor runs batches as long as the policy says so, and then sleeps. Before
///    it runs a batch that leaves requests behind, it asks the policy whether to wake another one.
///
/// A batch holds a slot while it runs, except for short ones of light clients: a polling thread
/// runs those beside others. If batches may wait to be filled (max_delay_us), a sleeping thread
/// wakes by itself when the next one is due; the policy is not asked.
///
/// Thread-safe, except for Start, RunBetweenBatches and Close: one of them at a time, and not from
/// one of its own threads.
class Executor final : private Slots::Waiter {
 public:
  /// `servable` must outlive the executor; its settings say how many batches may run concurrently,
  /// and on which processors. `slots` bounds them across all models.
  Executor(Servable& servable, Servable::Deliver deliver, Clock clock,
           Slots& slots = Slots::Shared());
  ~Executor() override;

  /// Starts the first thread and returns once it has run these batches. Throws Error (kExecution)
  /// if the model failed on one.
  void Start(const std::vector<WarmUpBatch>& warm_up);
  /// Throws Error (kRequestTooLarge) if the request exceeds the limits.
  void CheckSize(const Request& request) const { queue_.CheckSize(request); }
  /// Queues a checked request. In a polling thread, it is scheduled by PendingDecisions. Throws
  /// Error: kRequestTooLarge, kDraining; QueueFullError.
  void Submit(const std::shared_ptr<Request>& request);
  /// Queues requests whose size was checked, in order, under one lock. Appends those that are
  /// refused; never throws if there is memory for all of them.
  void SubmitAll(Span<const std::shared_ptr<Request>> requests, std::vector<Refusal>* refused);
  /// Drops a waiting request; returns false if it no longer waits.
  bool Cancel(Request& request);
  /// Decides about the waiting requests; `may_run_here`: whether a batch may run in the calling
  /// polling thread. Returns when to call again because the running batches are late; infinite if
  /// not needed.
  double Schedule(bool may_run_here);
  /// Runs `function` while no batch runs: every batch sees all of its changes, or none.
  void RunBetweenBatches(const std::function<void()>& function);
  /// Refuses further requests, answers the accepted ones, ends the threads; idempotent.
  void Close();

  Servable& servable() { return servable_; }

 private:
  enum class Phase { kOpen, kPaused, kClosed };
  using Lock = ExecutorLock;
  /// What a thread runs batches with.
  struct Worker {
    BatchRunner runner;
    Requests requests = {}, expired = {};
    /// Further requests of the batch that BatchQueue::AppendAll has not appended yet.
    Request* others = nullptr;
    /// Size of the batch.
    BatchSize size = {};
  };

  // The executor's own threads.
  std::unique_ptr<Worker> MakeWorker(std::size_t number);
  void WarmUp(BatchRunner& runner, const std::vector<WarmUpBatch>& batches);
  void RunFurtherThread(std::size_t number);
  /// Runs batches until the executor is closed.
  void Run(Lock& lock, Worker& worker);
  /// Returns until when a thread has nothing to run: infinite if it must be woken, none if it may
  /// start a batch now.
  std::optional<double> SleepsUntilS(double now_s);
  void Wake(double now_s);
  void Granted() override;
  /// Returns whether the lock was released meanwhile.
  bool ReleaseSlot(Lock& lock);

  // Batches, in any thread. All release the lock while a batch runs.
  /// Takes the next batch and runs it, in a slot of the caller.
  void RunBatch(Lock& lock, Worker& worker, double now_s);
  /// Runs the batch that the worker has taken.
  void RunTaken(Lock& lock, Worker& worker, double began_s, bool has_slot);
  /// Returns the parts of the batch that the worker has taken, if it is one large request and other
  /// executors are free; null for most.
  std::shared_ptr<CutRequest> Cut(const Worker& worker, double now_s);
  /// Returns a request of which parts are left; null if there is none.
  std::shared_ptr<CutRequest> CutForHelp() const;
  /// Computes parts of a request that another thread answers, in a slot of the caller.
  void Help(Lock& lock, Worker& worker, const std::shared_ptr<CutRequest>& cut);

  // The polling threads.
  bool CanRunHere() const;
  void RunHere(Lock& lock, double now_s);
  /// Whether requests of light clients come next, and form a short batch of their own: they do not
  /// wait for what others compute.
  bool IsLightNext() const;
  void RunLightHere(Lock& lock);

  BatchPolicy::State StateAt(double now_s) const;
  /// Returns how many rows the caller's batch takes.
  std::int64_t ShareOf(BatchPolicy::State state) const;
  void SetPhase(Phase phase);
  void ShowPending();

  Servable& servable_;
  const Servable::Deliver deliver_;
  const Clock clock_;
  Slots& slots_;

  std::mutex mutex_;
  /// For callers that wait until no batch runs.
  std::condition_variable idle_;
  Phase phase_ = Phase::kOpen;
  BatchQueue queue_;
  BatchPolicy policy_;
  ExecutorThreads threads_;
  /// For the polling thread that runs a batch: one at a time.
  Worker here_;
  bool is_running_here_ = false;
  /// Requests that are computed in parts.
  std::vector<std::shared_ptr<CutRequest>> cut_;
  /// Until then, polling threads read instead of running further requests of light clients.
  double reads_until_s_ = 0;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_CORE_EXECUTOR_EXECUTOR_H_
