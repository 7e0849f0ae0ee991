// Batches that wait to be filled, with a clock that only moves when it is set.

#include <gtest/gtest.h>

#include <optional>
#include <utility>

#include "tests/core/queue/queue_parts.h"

namespace recsys {
namespace {

constexpr double kDelayS = 0.002;

class DelayedQueueTest : public testing::Test {
 protected:
  static BatchLimits Delayed() {
    BatchLimits limits;
    limits.max_batch_rows = 10;
    limits.max_batch_ids = 100;
    limits.max_request_rows = 20;
    limits.max_delay_us = 2000;
    return limits;
  }
  double now_s_ = 0;
  BatchQueue queue_{Delayed(), [this] { return now_s_; }};
};

TEST_F(DelayedQueueTest, ABatchWaitsUntilItsOldestRequestHasWaitedLongEnough) {
  now_s_ = 3.0;
  PutInto(queue_, WaitAt("low", Priority::kLow, 1));
  now_s_ = 3.001;
  PutInto(queue_, WaitAt("high", Priority::kHigh, 1));
  EXPECT_TRUE(queue_.has_delay());
  EXPECT_EQ(queue_.ReadyAt(), 3.0 + kDelayS);
  EXPECT_EQ(TakeFrom(queue_).batch, (Names{"low", "high"}));
  EXPECT_EQ(queue_.ReadyAt(), std::nullopt);
}

TEST_F(DelayedQueueTest, AFullBatchDoesNotWait) {
  for (const auto& [rows, ids] : {std::pair{9, 1}, std::pair{1, 99}, std::pair{20, 1}}) {
    PutInto(queue_, Wait("a"));
    EXPECT_EQ(queue_.ReadyAt(), kDelayS);
    PutInto(queue_, Wait("b", rows, ids));
    EXPECT_EQ(queue_.ReadyAt(), 0.0);
    while (queue_.num_requests() > 0) TakeFrom(queue_);
  }
}

TEST_F(DelayedQueueTest, ACancelledRequestDelaysNobody) {
  const auto first = Wait("a", 9, 1, kDelayS);
  PutInto(queue_, first);
  now_s_ = 0.0005;
  PutInto(queue_, Wait("b"));
  queue_.Cancel(*first);
  EXPECT_EQ(queue_.ReadyAt(), 0.0005 + kDelayS);
}

TEST_F(DelayedQueueTest, NoRequestExpiresBecauseOfTheDelay) {
  for (const auto& [deadline, ready] :
       {std::pair{10.0, 1.0}, std::pair{1.5, 0.5}, std::pair{0.5, -0.5}}) {
    PutInto(queue_, Wait("a"));
    PutInto(queue_, Wait("b", 1, 1, deadline * kDelayS));
    EXPECT_NEAR(*queue_.ReadyAt(), ready * kDelayS, 1e-12);
    TakeFrom(queue_);
  }
}

TEST_F(DelayedQueueTest, AClockThatJumpsBackNeitherExpiresNorDelaysNorReorders) {
  now_s_ = 1000.0;
  PutInto(queue_, Wait("a", 1, 1, 1001.0));
  now_s_ = 10.0;
  const auto low = Wait("b", 1, 1, 11.0);
  low->priority = Priority::kLow;
  PutInto(queue_, low);
  EXPECT_NEAR(*queue_.ReadyAt(), 10.0 + kDelayS, 1e-9);
  now_s_ = 10.5;
  const auto high = Wait("c", 1, 1, 12.0);
  high->priority = Priority::kHigh;
  PutInto(queue_, high);
  now_s_ = 11.0;
  const Taken taken = TakeFrom(queue_);
  EXPECT_EQ(taken.expired, (Names{"a", "b"}));
  EXPECT_EQ(taken.batch, Names{"c"});
}

}  // namespace
}  // namespace recsys
