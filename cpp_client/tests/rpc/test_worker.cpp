// Threads for what may block.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "server/rpc/worker.h"

namespace recsys {
namespace {

constexpr std::chrono::seconds kLong{30};

TEST(Worker, ATaskDoesNotWaitForThoseThatAreStuckWhileItMayHaveMoreThreads) {
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  std::promise<void> ran;
  Worker worker(1, 3);
  for (int i = 0; i < 2; ++i) worker.Run([released] { released.wait(); });
  worker.Run([&ran] { ran.set_value(); });
  EXPECT_EQ(ran.get_future().wait_for(kLong), std::future_status::ready);
  release.set_value();
}

TEST(Worker, HasNoMoreThreadsThanItMay) {
  std::atomic<int> num_running{0};
  std::atomic<int> num_most{0};
  std::atomic<int> num_done{0};
  {
    Worker worker(1, 2);
    for (int i = 0; i < 100; ++i) {
      worker.Run([&] {
        const int now = ++num_running;
        int most = num_most.load();
        while (now > most && !num_most.compare_exchange_weak(most, now)) {
        }
        std::this_thread::yield();
        --num_running;
        ++num_done;
      });
    }
  }
  EXPECT_EQ(num_done.load(), 100);
  EXPECT_LE(num_most.load(), 2);
}

}  // namespace
}  // namespace recsys
