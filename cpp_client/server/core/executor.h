#ifndef RECSYS_SERVER_CORE_EXECUTOR_H_
#define RECSYS_SERVER_CORE_EXECUTOR_H_

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
#include "server/core/batch_queue.h"
#include "server/core/hosted.h"
#include "server/core/warm_up.h"

namespace recsys {

class BatchRunner;

/// The threads that take batches from a version's queue, run its model and hand the answers back
/// (serve/executor.py). Thread-safe, but for Start, WaitUntilWarm and Close, which belong to one
/// thread, none of its own.
class Executor {
 public:
  /// Of `hosted`, which must outlive it: its settings say how many threads there are, and where.
  Executor(Hosted& hosted, Hosted::Deliver deliver, Clock clock);
  ~Executor();

  /// Starts the threads; each runs these batches before it takes its first one.
  void Start(std::vector<WarmUpBatch> warm_up);
  /// Blocks until every thread has run them. Throws Error (kExecution) where the model failed on
  /// one.
  void WaitUntilWarm();

  /// Throws as Hosted::Submit.
  void Submit(const std::shared_ptr<Request>& request);
  /// Drops a request that waits; false where it does not.
  bool Cancel(Request& request);
  /// Runs `function` while no batch runs: every batch sees all of what it changes, or nothing.
  void RunBetweenBatches(const std::function<void()>& function);
  /// Takes no further requests, answers those that were accepted, ends the threads; idempotent.
  void Close();

 private:
  void Run(std::int64_t number);
  std::unique_ptr<BatchRunner> MakeWarm();
  /// Waits until a batch may start; false once closed and empty.
  bool WaitForBatch(std::unique_lock<std::mutex>& lock);
  /// Until somebody wakes it, or until then on the clock.
  void Sleep(std::unique_lock<std::mutex>& lock, double until_s);
  /// Whether a thread should be woken for what has joined the queue; counts it as woken.
  bool WakeOne();
  void ShowPending();
  void Resume();

  Hosted& hosted_;
  const Hosted::Deliver deliver_;
  const Clock clock_;

  std::mutex mutex_;
  /// Threads that wait for batches; whoever waits for them to pause; for them to be warm.
  std::condition_variable ready_, paused_, warm_;
  BatchQueue queue_;
  bool is_closed_ = false;
  bool is_pausing_ = false;
  int num_running_ = 0;
  int num_sleeping_ = 0;
  /// When one that sleeps looks at the queue by itself; infinite where that is not known.
  double looks_at_s_ = std::numeric_limits<double>::infinity();
  /// Of those that sleep, how many were woken already.
  int num_waking_ = 0;
  std::size_t num_warm_ = 0;
  std::vector<WarmUpBatch> warm_up_;
  std::optional<std::string> warm_up_error_;
  std::vector<std::thread> threads_;
};

}  // namespace recsys

#endif  // RECSYS_SERVER_CORE_EXECUTOR_H_
