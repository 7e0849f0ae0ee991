// Wake-ups that are given under the executor's lock reach the threads once it is released.

#include <gtest/gtest.h>

#include <future>
#include <mutex>
#include <thread>

#include "engine/core/executor/executor_threads.h"

namespace recsys {
namespace {

class ExecutorThreadsTest : public testing::Test {
 protected:
  /// Starts a thread that ends once it has been woken with a slot, and waits until it sleeps.
  std::thread Sleeper() {
    std::thread thread([this] {
      ExecutorLock lock(mutex_, threads_);
      while (!threads_.TakeSlot()) lock.Sleep(kNever);
      threads_.WakeAll();
    });
    while (!HasSleeping()) std::this_thread::yield();
    return thread;
  }
  bool HasSleeping() {
    const ExecutorLock lock(mutex_, threads_);
    return threads_.has_sleeping();
  }

  std::mutex mutex_;
  ExecutorThreads threads_{1, MonotonicSeconds, [](std::size_t) {}};
};

TEST_F(ExecutorThreadsTest, AWakeUpIsGivenOnceTheLockIsReleased) {
  std::thread sleeper = Sleeper();
  {
    const ExecutorLock lock(mutex_, threads_);
    threads_.Wake(MonotonicSeconds());
  }
  sleeper.join();
  EXPECT_FALSE(HasSleeping());
}

TEST_F(ExecutorThreadsTest, AWakeUpIsGivenWhereTheLockIsReleasedForAWhile) {
  std::thread sleeper = Sleeper();
  ExecutorLock lock(mutex_, threads_);
  threads_.Wake(MonotonicSeconds());
  lock.Unlock();
  sleeper.join();
  lock.Lock();
  EXPECT_FALSE(threads_.is_waking());
}

TEST_F(ExecutorThreadsTest, AWakeUpIsGivenBeforeItsThreadSleepsItself) {
  std::thread sleeper = Sleeper();
  {
    ExecutorLock lock(mutex_, threads_);
    threads_.Wake(MonotonicSeconds());
    while (threads_.is_waking()) lock.Sleep(kNever);
  }
  sleeper.join();
}

TEST_F(ExecutorThreadsTest, AWakeUpOfAllIsNotReplacedByOneOfOne) {
  std::thread sleeper = Sleeper();
  std::promise<void> locked;
  std::thread other([&] {
    ExecutorLock lock(mutex_, threads_);
    locked.set_value();
    lock.Sleep(kNever);
  });
  // It has the lock until it sleeps.
  locked.get_future().wait();
  {
    const ExecutorLock lock(mutex_, threads_);
    threads_.WakeAll();
    threads_.Wake(MonotonicSeconds());
  }
  sleeper.join();
  other.join();
}

}  // namespace
}  // namespace recsys
