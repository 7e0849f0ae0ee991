// Many threads at once: every request is Done exactly once, and all are counted.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "tests/core/gateway_parts.h"

namespace recsys {
namespace {

class RaceTest : public GatewayTest {
 protected:
  static constexpr int kNumThreads = 4;
  static constexpr int kNumEach = 500;

  /// Calls `send` with numbers, from several threads.
  void FromManyThreads(const std::function<void(int)>& send) {
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kNumThreads; ++thread) {
      threads.emplace_back([&, thread] {
        for (int i = 0; i < kNumEach; ++i) send(thread * kNumEach + i);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  void ExpectAllDoneOnce(int num) {
    EXPECT_TRUE(gateway_.WaitUntilIdle(MonotonicSeconds() + 60));
    std::vector<std::string> names = answers_.names();
    EXPECT_EQ(names.size(), static_cast<std::size_t>(num));
    std::sort(names.begin(), names.end());
    EXPECT_EQ(std::unique(names.begin(), names.end()), names.end());
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < kNumOutcomes; ++i) sum += Count(static_cast<Outcome>(i));
    EXPECT_EQ(sum, num);
    EXPECT_EQ(watcher_.ended().size(), static_cast<std::size_t>(num));
  }
};

TEST_F(RaceTest, CancelsRaceWithAnswers) {
  VersionSettings settings;
  settings.num_executors = 2;
  settings.limits.max_batch_rows = 16;
  Serve(settings);
  std::mutex mutex;
  std::vector<std::shared_ptr<SumRequest>> sent;
  std::atomic<bool> is_over{false};
  std::thread canceller([&] {
    for (std::size_t next = 0; !is_over.load() || next < kNumThreads * kNumEach;) {
      std::shared_ptr<SumRequest> request;
      {
        const std::lock_guard<std::mutex> lock(mutex);
        if (next < sent.size()) request = sent[next++];
      }
      if (request != nullptr) gateway_.Cancel(request);
    }
  });
  FromManyThreads([&](int number) {
    const auto request = Make(std::to_string(number), {{number}, {1, 2}});
    if (number % 3 == 0) request->deadline_s = MonotonicSeconds() + 0.001 * (number % 5);
    {
      const std::lock_guard<std::mutex> lock(mutex);
      sent.push_back(request);
    }
    gateway_.Predict(request);
  });
  is_over = true;
  canceller.join();
  ExpectAllDoneOnce(kNumThreads * kNumEach);
  for (const auto& request : sent) {
    const Answers::Answer answer = answers_.Of(request->request_id);
    if (answer.status.ok()) {
      EXPECT_EQ(answer.scores, request->expected());
    }
  }
}

TEST_F(RaceTest, VersionsAreSwappedUnderLoadWithoutOneFailedRequest) {
  std::atomic<int> version{1};
  Opened now = Serve();
  std::atomic<bool> is_over{false};
  std::thread swapper([&] {
    while (!is_over.load() && version.load() < 200) {
      const Opened next = Host({}, std::to_string(++version));
      router_.Set({next.servable, nullptr});
      now.servable->Close();
      now = next;
    }
  });
  FromManyThreads([&](int number) { Predict(std::to_string(number), {{number}}); });
  is_over = true;
  swapper.join();
  ExpectAllDoneOnce(kNumThreads * kNumEach);
  EXPECT_EQ(Count(Outcome::kOk), kNumThreads * kNumEach);
  EXPECT_GT(version.load(), 1);
}

TEST_F(RaceTest, NoBatchSeesADeltaHalfDone) {
  VersionSettings settings;
  settings.num_executors = 2;
  settings.limits.max_batch_rows = 4;
  all_.push_back(
      HostSum([this](Request& request, const Status& status,
                     Message answer) { gateway_.End(request, status, std::move(answer)); },
              settings));
  const Opened opened = all_.back();
  int left = 0, right = 0;  // plain numbers: a race would show
  opened.model->on_predict = [&](const Batch&) {
    if (left != right) throw std::runtime_error("half a delta");
  };
  opened.model->on_delta = [&] {
    ++left;
    ++right;
  };
  opened.servable->Open();
  router_.Set({opened.servable, nullptr});
  std::atomic<bool> is_over{false};
  std::vector<std::thread> changers;
  for (int i = 0; i < 2; ++i) {
    changers.emplace_back([&] {
      while (!is_over.load()) {
        opened.servable->ApplyDelta("a.delta");
      }
    });
  }
  FromManyThreads([&](int number) { Predict(std::to_string(number), {{number}}); });
  EXPECT_TRUE(gateway_.WaitUntilIdle(MonotonicSeconds() + 60));
  is_over = true;
  for (std::thread& changer : changers) changer.join();
  ExpectAllDoneOnce(kNumThreads * kNumEach);
  EXPECT_EQ(Count(Outcome::kOk), kNumThreads * kNumEach);
  EXPECT_GT(left, 0);
}

TEST_F(RaceTest, AFullQueueAndADrainRefuseAndWhatWasAcceptedIsAnswered) {
  VersionSettings settings;
  settings.limits.max_request_rows = settings.limits.max_queue_rows = 8;
  settings.limits.max_batch_rows = 2;
  settings.limits.max_delay_us = 200;
  settings.num_executors = 2;
  const Opened opened = Serve(settings);
  FromManyThreads([&](int number) {
    if (number == kNumEach * kNumThreads - kNumEach / 2) gateway_.Drain();
    Predict(std::to_string(number), SumRequest::Ids(static_cast<std::size_t>(number % 4), {1}));
  });
  opened.servable->Close();
  ExpectAllDoneOnce(kNumThreads * kNumEach);
  EXPECT_EQ(num_accepted(), Count(Outcome::kOk));
  EXPECT_GT(Count(Outcome::kUnavailable), 0);
}

}  // namespace
}  // namespace recsys
