// Clients take turns by rows; the same cases as tests/serve/engine/reference/test_fair_order.py.

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "tests/core/allocations.h"
#include "tests/core/queue/queue_parts.h"

namespace recsys {
namespace {

constexpr double kWindowS = 0.1;

BatchLimits Limits() {
  BatchLimits limits;
  limits.max_batch_rows = 10;
  limits.max_batch_ids = 100;
  limits.max_request_rows = 20;
  limits.max_request_ids = 200;
  limits.max_queue_rows = 30;
  limits.max_queue_ids = 300;
  limits.max_queue_bytes = 3000;
  return limits;
}

class FairOrderTest : public testing::Test {
 protected:
  double now_s_ = 0;
  BatchQueue queue_{Limits(), [this] { return now_s_; }};
  std::map<char, int> counts_;

  std::shared_ptr<Waiting> Of(char client, std::int64_t rows = 1,
                              Priority priority = Priority::kNormal) {
    auto request = Wait(client + std::to_string(counts_[client]++), rows);
    request->client = static_cast<std::uint64_t>(client);
    request->priority = priority;
    return request;
  }
  /// Returns the names of those that were pushed out; "full" if the request was refused.
  Names Put(const std::shared_ptr<Request>& request) {
    Requests expired;
    BatchQueue::PushedOut pushed_out;
    if (queue_.Put(request, &expired, &pushed_out)) return {"full"};
    if (!pushed_out.requests.empty()) text_ = BatchQueue::ErrorOf(pushed_out).what();
    return NamesOf(pushed_out.requests);
  }
  void PutMany(char client, int num, std::int64_t rows = 1, Priority priority = Priority::kNormal) {
    for (int i = 0; i < num; ++i) EXPECT_EQ(Put(Of(client, rows, priority)), Names{});
  }
  Names Take() { return TakeFrom(queue_).batch; }
  Names TakeShort(std::int64_t enough_rows) {
    Requests batch, expired;
    queue_.Take(&batch, &expired, {enough_rows, true});
    return NamesOf(batch);
  }
  /// Leaves a request of 5 rows whose client has been served before, and whose start is now.
  void LeaveALargeRequest() {
    for (const char client : {'d', 'e', 'f'}) PutMany(client, 2, 5);
    EXPECT_EQ(Take(), (Names{"d0", "e0"}));
    EXPECT_EQ(TakeShort(5), Names{"f0"});
    EXPECT_EQ(Take(), (Names{"d1", "e1"}));
  }
  std::string text_;
};

TEST_F(FairOrderTest, ALightNeighbourWaitsForOneTurn) {
  PutMany('a', 20);
  PutMany('b', 1);
  EXPECT_EQ(Take(), (Names{"a0", "b0", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8"}));
  PutMany('c', 1);
  EXPECT_EQ(Take().front(), "c0");
}

TEST_F(FairOrderTest, AClientWithLittleThatComesBehindMuchIsNoticedForAWhile) {
  PutMany('a', 20);
  EXPECT_FALSE(queue_.HasLightClient(now_s_));
  PutMany('b', 1);
  EXPECT_TRUE(queue_.HasLightClient(now_s_));
  now_s_ = 1.5;
  EXPECT_FALSE(queue_.HasLightClient(now_s_));
  // What it has now is more than a share; nor is there a light client where less waits.
  PutMany('b', 2);
  EXPECT_FALSE(queue_.HasLightClient(now_s_));
  while (!Take().empty()) {
  }
  PutMany('a', 9);
  PutMany('c', 1);
  EXPECT_FALSE(queue_.HasLightClient(now_s_));
}

TEST_F(FairOrderTest, LightRequestsAreTakenByThemselves) {
  PutMany('a', 12);
  EXPECT_EQ(Take().size(), 10U);
  EXPECT_FALSE(queue_.is_next_light());
  std::vector<std::shared_ptr<Waiting>> light;
  for (const char client : {'b', 'c', 'd'}) {
    light.push_back(Of(client, 2));
    light.back()->is_light = true;
    Put(light.back());
  }
  EXPECT_TRUE(queue_.is_next_light());
  EXPECT_EQ(queue_.light_size().num_rows, 6);
  queue_.Cancel(*light.back());
  EXPECT_EQ(queue_.light_size().num_rows, 4);
  Requests batch, expired;
  queue_.Take(&batch, &expired, {queue_.num_rows(), false, true});
  EXPECT_EQ(NamesOf(batch), (Names{"b0", "c0"}));
  EXPECT_EQ(queue_.light_size().num_rows, 0);
  EXPECT_FALSE(queue_.is_next_light());
  EXPECT_EQ(Take(), (Names{"a10", "a11"}));
}

TEST_F(FairOrderTest, AClientThatHadNothingWaitingGoesAheadOfLargeRequests) {
  LeaveALargeRequest();
  PutMany('n', 1);
  EXPECT_EQ(TakeShort(1), Names{"n0"});
  EXPECT_EQ(Take(), Names{"f1"});
}

TEST_F(FairOrderTest, ASmallRequestGoesAheadOfLargeOnesOfClientsThatHadNothingWaiting) {
  for (const char client : {'d', 'e', 'f'}) PutMany(client, 1, 9);
  PutMany('n', 1);
  EXPECT_EQ(Take(), (Names{"n0", "d0"}));
  // Nor does it owe the row.
  PutMany('n', 1);
  EXPECT_EQ(Take(), (Names{"n1", "e0"}));
}

TEST_F(FairOrderTest, ClientsThatComeOneAfterTheOtherDoNotStarveALargeRequest) {
  LeaveALargeRequest();
  Names taken;
  while (taken.empty() || taken.back() != "f1") {
    auto request = Wait("n", 1);
    request->client = 1'000 + taken.size();
    EXPECT_EQ(Put(request), Names{});
    taken.push_back(TakeShort(1).front());
  }
  EXPECT_GT(taken.size(), 100U);
  EXPECT_LE(taken.size(), static_cast<std::size_t>(2 * FairOrder::kTurnsAhead));
}

TEST_F(FairOrderTest, AShortBatchEndsBeforeALargeRequest) {
  PutMany('n', 1);
  PutMany('a', 1, 9);
  EXPECT_EQ(TakeShort(5), Names{"n0"});
  EXPECT_EQ(TakeShort(5), Names{"a0"});
}

TEST_F(FairOrderTest, RowsCountNotRequests) {
  PutMany('a', 3, 4);
  PutMany('b', 8, 1);
  EXPECT_EQ(Take(), (Names{"b0", "a0", "b1", "b2", "b3"}));
  EXPECT_EQ(Take(), (Names{"a1", "b4", "b5", "b6", "b7"}));
  EXPECT_EQ(Take(), (Names{"a2"}));
}

TEST_F(FairOrderTest, AClientWithOneLargeRequestAtATimeOwesItsRows) {
  PutMany('b', 20);
  PutMany('a', 1, 10);
  EXPECT_EQ(Take(), Names{"b0"});
  EXPECT_EQ(Take(), Names{"a0"});
  PutMany('a', 1, 10);
  EXPECT_EQ(Take(), (Names{"b1", "b2", "b3", "b4", "b5", "b6", "b7", "b8", "b9"}));
  EXPECT_EQ(Take(), Names{"a1"});
}

TEST_F(FairOrderTest, UrgentRequestsStillGoFirst) {
  PutMany('a', 12);
  PutMany('b', 1, 1, Priority::kLow);
  PutMany('c', 1, 1, Priority::kHigh);
  const Names first = Take();
  EXPECT_EQ(first.front(), "c0");
  EXPECT_EQ(Take(), (Names{"a9", "a10", "a11", "b0"}));
}

TEST_F(FairOrderTest, AFloodOfUrgentRequestsOvertakesForOneWindow) {
  PutMany('a', 20, 1, Priority::kHigh);
  PutMany('b', 1);
  EXPECT_EQ(Take().back(), "a9");
  now_s_ = kWindowS + 0.001;
  const Names second = Take();
  EXPECT_EQ((Names{second[0], second[1]}), (Names{"a10", "b0"}));
}

TEST_F(FairOrderTest, AFullQueuePushesOutTheLastOfTheHeaviest) {
  PutMany('a', 30);
  EXPECT_EQ(Put(Of('b', 2)), (Names{"a29", "a28"}));
  EXPECT_EQ(text_,
            "queue: 30 rows wait, at most 30 may, and most of them are this connection's; "
            "try again later");
  EXPECT_EQ(queue_.num_rows(), 30);
  for (int i = 0; i < 13; ++i) EXPECT_EQ(Put(Of('b')), Names{"a" + std::to_string(27 - i)});
  // Both have as much.
  EXPECT_EQ(Put(Of('b')), Names{"full"});
  EXPECT_EQ(Put(Of('a')), Names{"full"});
  EXPECT_EQ(Put(Of('c')).size(), 1U);
}

TEST_F(FairOrderTest, AClientAloneIsRefused) {
  PutMany('a', 30);
  EXPECT_EQ(Put(Of('a')), Names{"full"});
  EXPECT_EQ(queue_.num_requests(), 30);
}

TEST_F(FairOrderTest, NothingIsPushedOutForAsHeavyAClient) {
  PutMany('a', 3, 10);
  EXPECT_EQ(Put(Of('b', 20)), Names{"full"});
  EXPECT_EQ(queue_.num_rows(), 30);
}

TEST_F(FairOrderTest, WhatLeavesUnservedCostsNoTurn) {
  const auto gone = Of('a', 9);
  EXPECT_EQ(Put(gone), Names{});
  const auto late = Of('a', 9);
  late->deadline_s = 1;
  EXPECT_EQ(Put(late), Names{});
  PutMany('a', 2);
  PutMany('b', 2);
  EXPECT_EQ(queue_.Cancel(*gone), gone);
  now_s_ = 2;
  Requests batch, expired;
  queue_.Take(&batch, &expired, {3, true});
  EXPECT_EQ(NamesOf(expired), Names{"a1"});
  EXPECT_EQ(NamesOf(batch), (Names{"b0", "a2", "b1"}));
  EXPECT_EQ(Take(), Names{"a3"});
}

TEST_F(FairOrderTest, KnownClientsAllocateNothing) {
  if (!kCountsAllocations) GTEST_SKIP() << "allocations are not counted";
  const auto first = Of('a'), second = Of('a'), other = Of('b');
  Requests batch, expired;
  batch.reserve(8);
  const auto round = [&] {
    for (const auto& request : {first, second, other}) queue_.Put(request, &expired);
    queue_.Take(&batch, &expired);
    batch.clear();
  };
  round();
  const std::size_t before = NumAllocations();
  round();
  EXPECT_EQ(NumAllocations(), before);
}

TEST(FairOrder, RemembersFewIdleClients) {
  FairOrder order(kWindowS);
  for (int i = 1; i <= 10'000; ++i) {
    const auto request = Wait("one");
    request->client = static_cast<std::uint64_t>(i);
    request->level = 2;
    request->room = {1, 1, 0};
    order.Join(*request, 0);
    order.Leave(*request, 0, true);
  }
  EXPECT_EQ(order.num_clients(), FairOrder::kMaxIdle);
  EXPECT_EQ(order.Next(), nullptr);
}

TEST(FairOrder, WaitingClientsGetTheSameRowsWhateverTheySend) {
  std::mt19937 random(0);
  BatchLimits limits = Limits();
  limits.max_queue_rows = 1000;
  limits.max_queue_ids = 1000;
  BatchQueue queue(limits, [] { return 0.0; });
  std::map<std::uint64_t, std::int64_t> waiting, served;
  const auto fill = [&] {
    for (std::uint64_t client = 1; client <= 5; ++client) {
      while (waiting[client] < 40) {
        const auto rows =
            std::uniform_int_distribution<std::int64_t>(1, static_cast<int>(2 * client))(random);
        const auto request = Wait("one", rows);
        request->client = client;
        Requests expired;
        ASSERT_FALSE(queue.Put(request, &expired));
        waiting[client] += rows;
      }
    }
  };
  for (int i = 0; i < 500; ++i) {
    fill();
    Requests batch, expired;
    queue.Take(&batch, &expired);
    for (const auto& request : batch) {
      waiting[request->client] -= request->checked.num_rows;
      served[request->client] += request->checked.num_rows;
    }
    // One request of the one, and one of the other.
    for (std::uint64_t client = 1; client <= 5; ++client) {
      EXPECT_NEAR(served[client], served[1], 20) << client;
    }
  }
}

}  // namespace
}  // namespace recsys
