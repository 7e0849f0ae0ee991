#ifndef RECSYS_SERVER_RPC_WORKER_H_
#define RECSYS_SERVER_RPC_WORKER_H_

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace recsys {

/// Threads for what may block: loading models, reading files, answering operators. Tasks must not
/// throw. Thread-safe.
class Worker {
 public:
  /// `num_threads` from the start, and up to `most` where all are at work and a task would have to
  /// wait for them.
  explicit Worker(int num_threads, int most = 0);
  /// Runs what was given, then ends the threads.
  ~Worker();
  void Run(std::function<void()> task);

 private:
  void Loop();
  /// With the lock held.
  void AddThread();

  const std::size_t most_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  /// Threads that run a task.
  std::size_t num_busy_ = 0;
  bool is_closed_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace recsys

#endif  // RECSYS_SERVER_RPC_WORKER_H_
