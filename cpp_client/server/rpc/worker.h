#ifndef RECSYS_SERVER_RPC_WORKER_H_
#define RECSYS_SERVER_RPC_WORKER_H_

#include <condition_variable>
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
  explicit Worker(int num_threads);
  /// Runs what was given, then ends the threads.
  ~Worker();
  void Run(std::function<void()> task);

 private:
  void Loop();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  bool is_closed_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace recsys

#endif  // RECSYS_SERVER_RPC_WORKER_H_
