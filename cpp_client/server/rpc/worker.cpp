#include "server/rpc/worker.h"

#include <algorithm>
#include <system_error>
#include <utility>

namespace recsys {

Worker::Worker(int num_threads, int most)
    : most_(static_cast<std::size_t>(std::max(num_threads, most))) {
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { Loop(); });
}

Worker::~Worker() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_closed_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Worker::Run(std::function<void()> task) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back(std::move(task));
    if (num_busy_ + tasks_.size() > threads_.size() && threads_.size() < most_) AddThread();
  }
  wake_.notify_one();
}

void Worker::AddThread() {
  try {
    threads_.emplace_back([this] { Loop(); });
  } catch (const std::system_error&) {
    // The system has no more of them: the task waits for those that there are.
  }
}

void Worker::Loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return is_closed_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    ++num_busy_;
    lock.unlock();
    task();
    // What the task held is let go of without the lock.
    task = nullptr;
    lock.lock();
    --num_busy_;
  }
}

}  // namespace recsys
