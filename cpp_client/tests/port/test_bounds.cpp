// What bounds connections, by itself.

#include <gtest/gtest.h>

#include "port/bounds/memory_ledger.h"
#include "port/bounds/session_memory.h"
#include "port/polling/timers.h"

namespace recsys::http2 {
namespace {

TEST(TokenBucket, ABurstIsFollowedByARate) {
  TokenBucket bucket(10, 100, 0);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(bucket.Take(1, 0));
  EXPECT_FALSE(bucket.Take(1, 0));
  TokenBucket steady(10, 100, 0);
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(steady.Take(1, i * 0.1));
}

TEST(TokenBucket, WorkGivesTokensBackButNoMoreThanABurst) {
  TokenBucket bucket(0, 10, 0);
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(bucket.Take(2, 0));
    bucket.Give(2);
  }
  bucket.Give(1000);
  EXPECT_FALSE(bucket.Take(11, 0));
}

TEST(TokenBucket, AnInfiniteRateBoundsNothing) {
  TokenBucket bucket(kNever, kNever, 0);
  EXPECT_TRUE(bucket.Take(1e30, 0));
  EXPECT_TRUE(bucket.Take(1e30, 0));
}

TEST(MemoryLedger, BeyondTheBoundTheLargestIsClosedOnceAtATime) {
  std::atomic<std::int64_t> total{0};
  MemoryLedger ledger(100, &total);
  std::vector<int> closed;
  auto first = std::make_unique<MemoryLedger::Account>(&ledger, [&] { closed.push_back(1); });
  auto second = std::make_unique<MemoryLedger::Account>(&ledger, [&] { closed.push_back(2); });
  auto third = std::make_unique<MemoryLedger::Account>(&ledger, [&] { closed.push_back(3); });
  first->Add(20);
  second->Add(60);
  third->Add(20);
  EXPECT_TRUE(closed.empty());
  // The one that grows is not the one that holds most.
  third->Add(10);
  third->Add(10);
  EXPECT_EQ(closed, (std::vector<int>{2}));
  second = nullptr;
  EXPECT_EQ(total, 60);
  first->Add(50);
  EXPECT_EQ(closed, (std::vector<int>{2, 1}));
  first = nullptr;
  third = nullptr;
  EXPECT_EQ(total, 0);
}

TEST(MemoryLedger, OnceHalfFullItOpensNothingForThoseAboveTheirEvenShare) {
  std::atomic<std::int64_t> total{0};
  MemoryLedger ledger(100, &total);
  MemoryLedger::Account large(&ledger, [] {}), small(&ledger, [] {});
  large.Add(50);
  EXPECT_TRUE(large.MayOpen());
  small.Add(10);
  EXPECT_FALSE(large.MayOpen());
  EXPECT_TRUE(small.MayOpen());
  large.Add(-14);
  // Half of three quarters.
  small.Add(20);
  EXPECT_TRUE(large.MayOpen());
  large.Add(1);
  small.Add(8);
  EXPECT_TRUE(large.MayOpen());
  EXPECT_FALSE(small.MayOpen());
}

TEST(MemoryLedger, WhoIsClosedMakesRoomForTheNextToBeClosed) {
  std::atomic<std::int64_t> total{0};
  MemoryLedger ledger(100, &total);
  std::vector<int> closed;
  MemoryLedger::Account first(&ledger, [&] { closed.push_back(1); });
  MemoryLedger::Account second(&ledger, [&] { closed.push_back(2); });
  first.Add(60);
  second.Add(50);
  EXPECT_EQ(closed, std::vector<int>{1});
  // It lingers, and holds nothing any more.
  first.Add(-60);
  first.Closed();
  second.Add(60);
  EXPECT_EQ(closed, (std::vector<int>{1, 2}));
}

TEST(MemoryLedger, LittleIsAddedToTheSumLater) {
  std::atomic<std::int64_t> total{0};
  MemoryLedger ledger(0, &total);
  {
    MemoryLedger::Account account(&ledger, [] {});
    account.Add(4000);
    EXPECT_EQ(total, 0);
    EXPECT_EQ(account.num_bytes(), 4000);
    account.Publish();
    EXPECT_EQ(total, 4000);
    account.Add(5000);
    EXPECT_EQ(total, 9000);
    account.Add(-1);
  }
  EXPECT_EQ(total, 0);
}

struct Counted final : Timed {
  void OnDue(double now_s) override { times.push_back(now_s); }
  std::vector<double> times;
};

TEST(Timers, FireWhatIsDueOnceAndInOrder) {
  Timers timers;
  Counted a, b, c;
  timers.Set(&a, 3);
  timers.Set(&b, 1);
  timers.Set(&c, 2);
  timers.Set(&a, 0.5);
  timers.SetEarlier(&b, 2);
  timers.Remove(&c);
  EXPECT_DOUBLE_EQ(timers.next_s(), 0.5);
  timers.Fire(0.75);
  timers.Fire(5);
  timers.Fire(6);
  EXPECT_EQ(a.times, std::vector<double>{0.75});
  EXPECT_EQ(b.times, std::vector<double>{5});
  EXPECT_TRUE(c.times.empty());
  EXPECT_EQ(timers.next_s(), kNever);
}

}  // namespace
}  // namespace recsys::http2
