// The engine's events for its owner: none is lost, whenever it is added.

#include <gtest/gtest.h>
#include <poll.h>

#include <thread>
#include <utility>

#include "engine/records.h"

namespace recsys {
namespace {

/// Takes records when their file becomes readable, as an event loop does. Returns the number of
/// answers, which is less than `num_wanted` if the file stays unreadable while some are left.
std::int64_t TakeAnswers(Records* records, std::int64_t num_wanted) {
  std::int64_t num_taken = 0;
  while (num_taken < num_wanted) {
    pollfd file{records->event_fd(), POLLIN, 0};
    if (poll(&file, 1, 2000) <= 0) return num_taken;
    num_taken += static_cast<std::int64_t>(records->Take(4).size());
  }
  return num_taken;
}

TEST(Records, WakeTheOwnerForEachEvent) {
  constexpr std::int64_t kNumEvents = 300'000, kNumThreads = 2;
  Records records{EngineSettings{}};
  std::vector<std::thread> threads;
  for (std::int64_t i = 0; i < kNumThreads; ++i) {
    threads.emplace_back([&records] {
      for (std::int64_t ticket = 0; ticket < kNumEvents; ++ticket) {
        AnswerEvent event;
        event.ticket = ticket;
        records.Add(std::move(event));
        // Lets the owner run out of events now and then.
        if (ticket % 8 == 0) std::this_thread::yield();
      }
    });
  }
  EXPECT_EQ(TakeAnswers(&records, kNumEvents * kNumThreads), kNumEvents * kNumThreads);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace recsys
