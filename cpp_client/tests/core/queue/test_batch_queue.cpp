// The batching policy, with a clock that only moves when told to.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "recsys/error.h"
#include "tests/core/allocations.h"
#include "tests/core/queue/queue_parts.h"

namespace recsys {
namespace {

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

constexpr double kWindowS = 0.1;

class QueueTest : public testing::Test {
 protected:
  double now_s_ = 0;
  Clock clock_ = [this] { return now_s_; };
  BatchQueue queue_{Limits(), clock_};

  Names Put(const std::shared_ptr<Request>& request) { return PutInto(queue_, request); }
  Taken Take() { return TakeFrom(queue_); }
  std::vector<Names> Batches() {
    std::vector<Names> batches;
    while (queue_.num_requests() > 0) batches.push_back(Take().batch);
    return batches;
  }
  /// The refusal's text.
  std::string Refused(const std::shared_ptr<Request>& request, ErrorKind kind) {
    try {
      Put(request);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind);
      return error.what();
    }
    ADD_FAILURE() << "was not refused";
    return "";
  }
  std::int64_t HintFor(const std::shared_ptr<Request>& request) {
    try {
      Put(request);
    } catch (const QueueFullError& error) {
      return error.retry_after_ms();
    }
    ADD_FAILURE() << "was not refused";
    return 0;
  }
  void Fill() {
    while (queue_.num_rows() < Limits().max_queue_rows) Put(Wait("filler"));
  }
};

TEST(RequestQueueTest, ABatchMayBeOneRequest) {
  BatchLimits limits = Limits();
  limits.max_delay_us = 1000;
  BatchQueue queue(
      limits, [] { return 0.0; }, true);
  EXPECT_FALSE(queue.has_delay());
  PutInto(queue, Wait("a"));
  PutInto(queue, Wait("b", 15));
  PutInto(queue, Wait("c", 0));
  EXPECT_EQ(queue.ReadyAt(), 0.0);
  std::vector<Names> batches;
  while (!queue.is_idle()) batches.push_back(TakeFrom(queue).batch);
  EXPECT_EQ(batches, (std::vector<Names>{{"a"}, {"c"}, {"b"}}));
}

TEST_F(QueueTest, AnIdleServerTakesASingleRequestAtOnce) {
  Put(Wait("a"));
  EXPECT_EQ(Take().batch, Names{"a"});
}

TEST_F(QueueTest, ABatchGrowsWhileTheLastOneRunsAndKeepsTheOrder) {
  Put(Wait("running"));
  Take();
  for (const char* name : {"a", "b", "c", "d"}) Put(Wait(name));
  EXPECT_EQ(Take().batch, (Names{"a", "b", "c", "d"}));
}

TEST_F(QueueTest, RowsAndIdsBothBoundABatch) {
  struct Case {
    std::vector<std::int64_t> rows, ids;
    std::size_t first;
  };
  const std::vector<Case> cases = {{{4, 6, 1}, {1, 1, 1}, 2},
                                   {{4, 7, 1}, {1, 1, 1}, 1},
                                   {{1, 1, 1}, {40, 60, 1}, 2},
                                   {{1, 1, 1}, {40, 61, 1}, 1}};
  for (const Case& one : cases) {
    for (std::size_t i = 0; i < 3; ++i)
      Put(Wait(std::string(1, "abc"[i]), one.rows[i], one.ids[i]));
    EXPECT_EQ(Take().batch.size(), one.first);
    EXPECT_EQ(Take().batch.size(), 3 - one.first);
  }
}

TEST_F(QueueTest, ASmallRequestDoesNotOvertakeOneThatNoLongerFits) {
  Put(Wait("a", 8));
  Put(Wait("large", 5));
  Put(Wait("small", 1));
  EXPECT_EQ(Take().batch, Names{"a"});
  EXPECT_EQ(Take().batch, (Names{"large", "small"}));
}

TEST_F(QueueTest, ARequestLargerThanABatchRunsAlone) {
  for (const auto& [rows, ids] : {std::pair{11, 1}, std::pair{1, 101}}) {
    Put(Wait("huge", rows, ids));
    Put(Wait("next"));
    EXPECT_EQ(Take().batch, Names{"next"});
    EXPECT_EQ(Take().batch, Names{"huge"});
  }
}

TEST_F(QueueTest, AHugeRequestIsOvertakenForOneWindowAndNoLonger) {
  Put(Wait("huge", 11));
  now_s_ = kWindowS * 0.99;
  Put(Wait("within"));
  now_s_ = kWindowS * 1.01;
  Put(Wait("after"));
  EXPECT_EQ(Batches(), (std::vector<Names>{{"within"}, {"huge"}, {"after"}}));
}

TEST_F(QueueTest, ARequestOverTheRequestLimitsIsRefused) {
  EXPECT_EQ(Refused(Wait("huge", 21), ErrorKind::kRequestTooLarge),
            "num_rows: got 21, expected at most 20 in one request; split it");
  EXPECT_EQ(Refused(Wait("huge", 1, 201), ErrorKind::kRequestTooLarge),
            "sparse: got 201 IDs, expected at most 200 in one request; split it");
  EXPECT_EQ(Refused(WaitSized("huge", 3001), ErrorKind::kRequestTooLarge),
            "message: got 3001 bytes, expected at most 3000 in one request; split it");
  EXPECT_EQ(queue_.num_requests(), 0);
}

TEST_F(QueueTest, IsBoundedByRowsIdsAndBytes) {
  struct Case {
    std::shared_ptr<Request> first, second, refused, fits;
    const char* text;
  };
  const std::vector<Case> cases = {
      {Wait("a", 15), Wait("b", 15), Wait("c"), Wait("d"),
       "queue: 30 rows wait, at most 30 may; try again later"},
      {Wait("a", 1, 150), Wait("b", 1, 150), Wait("c"), Wait("d"),
       "queue: 300 IDs wait, at most 300 may; try again later"},
      {WaitSized("a", 1500), WaitSized("b", 1500), WaitSized("c", 1), WaitSized("d", 1),
       "queue: 3000 bytes wait, at most 3000 may; try again later"},
  };
  for (const Case& one : cases) {
    Put(one.first);
    Put(one.second);
    EXPECT_EQ(Refused(one.refused, ErrorKind::kQueueFull), one.text);
    Take();
    Put(one.fits);
    Batches();
    EXPECT_EQ(queue_.num_rows() + queue_.num_ids() + queue_.num_bytes(), 0);
  }
}

TEST_F(QueueTest, WhatSharedInputsGrowToCountsAsBytes) {
  auto spread = Wait("spread");
  spread->num_bytes = 10;
  spread->checked.spread_bytes = 2000;
  Put(spread);
  EXPECT_EQ(queue_.num_bytes(), 2000);
  Refused(WaitSized("b", 1001), ErrorKind::kQueueFull);
}

TEST_F(QueueTest, RequestsWithoutRowsFillItToo) {
  for (int i = 0; i < 30; ++i) Put(Wait("empty", 0, 0));
  Refused(Wait("empty", 0, 0), ErrorKind::kQueueFull);
}

TEST_F(QueueTest, ExpiredRequestsLeaveWithoutBeingComputed) {
  Put(Wait("soon", 1, 1, 1.0));
  Put(Wait("later", 1, 1, 3.0));
  Put(Wait("never"));
  now_s_ = 2.0;
  const Taken taken = Take();
  EXPECT_EQ(taken.expired, Names{"soon"});
  EXPECT_EQ(taken.batch, (Names{"later", "never"}));
}

TEST_F(QueueTest, ADeadlineThatIsNowHasPassed) {
  Put(Wait("now", 1, 1, 1.0));
  now_s_ = 1.0;
  const Taken taken = Take();
  EXPECT_EQ(taken.expired, Names{"now"});
  EXPECT_TRUE(taken.batch.empty());
}

TEST_F(QueueTest, ExpiredRequestsTakeNoRoomInTheBatch) {
  Put(Wait("a", 5));
  Put(Wait("gone", 5, 1, 1.0));
  Put(Wait("b", 5));
  now_s_ = 2.0;
  EXPECT_EQ(Take().batch, (Names{"a", "b"}));
}

TEST_F(QueueTest, ExpiredRequestsDeepInTheQueueLeaveWithTheNextBatch) {
  Put(Wait("a", 10));
  Put(Wait("b", 10));
  Put(Wait("gone", 5, 1, 1.0));
  now_s_ = 1.0;
  const Taken taken = Take();
  EXPECT_EQ(taken.batch, Names{"a"});
  EXPECT_EQ(taken.expired, Names{"gone"});
  EXPECT_EQ(queue_.num_rows(), 10);
  EXPECT_EQ(queue_.num_requests(), 1);
}

TEST_F(QueueTest, CancelledRequestsLeaveAndFreeTheirRoom) {
  const auto first = Wait("a", 20, 200);
  Put(first);
  Put(Wait("b", 10));
  EXPECT_EQ(queue_.Cancel(*first), first);
  EXPECT_EQ(queue_.Cancel(*first), nullptr);
  EXPECT_EQ(queue_.num_requests(), 1);
  EXPECT_EQ(queue_.num_rows(), 10);
  EXPECT_EQ(queue_.num_ids(), 1);
  Put(Wait("c", 20));
  EXPECT_EQ(Batches(), (std::vector<Names>{{"b"}, {"c"}}));
}

TEST_F(QueueTest, CancelledRequestsAreNotHeld) {
  auto first = Wait("a", 1, 1, 60.0);
  const std::weak_ptr<Request> gone = first;
  Put(first);
  queue_.Cancel(*first);
  first.reset();
  EXPECT_TRUE(gone.expired());
}

TEST_F(QueueTest, CancellingAfterTheBatchWasTakenChangesNothing) {
  const auto first = Wait("a");
  Put(first);
  Take();
  EXPECT_EQ(queue_.Cancel(*first), nullptr);
  EXPECT_EQ(queue_.num_requests() + queue_.num_rows() + queue_.num_ids(), 0);
}

TEST_F(QueueTest, AnEmptyQueueGivesAnEmptyBatch) {
  EXPECT_TRUE(Take().batch.empty());
  EXPECT_TRUE(Take().expired.empty());
}

TEST_F(QueueTest, NotesWhenARequestJoined) {
  now_s_ = 5.0;
  const auto request = Wait("a");
  Put(request);
  EXPECT_EQ(request->enqueued_s, 5.0);
}

TEST_F(QueueTest, LetsGoOfWhatWaitsWhenItGoes) {
  std::weak_ptr<Request> gone;
  {
    BatchQueue queue(Limits(), clock_);
    auto request = Wait("a", 1, 1, 60.0);
    gone = request;
    PutInto(queue, request);
  }
  EXPECT_TRUE(gone.expired());
}

TEST_F(QueueTest, UrgentRequestsGoFirstAndEachLevelKeepsItsOrder) {
  const std::vector<std::pair<const char*, Priority>> requests = {{"low0", Priority::kLow},
                                                                  {"normal1", Priority::kNormal},
                                                                  {"high2", Priority::kHigh},
                                                                  {"low3", Priority::kLow},
                                                                  {"high4", Priority::kHigh}};
  for (const auto& [name, priority] : requests) {
    Put(WaitAt(name, priority));
    now_s_ += 0.001;
  }
  EXPECT_EQ(Batches(), (std::vector<Names>{{"high2"}, {"high4"}, {"normal1"}, {"low0"}, {"low3"}}));
}

TEST_F(QueueTest, PrioritiesShareABatch) {
  Put(WaitAt("low", Priority::kLow, 3));
  Put(WaitAt("normal", Priority::kNormal, 7));
  Put(WaitAt("high", Priority::kHigh, 3));
  EXPECT_EQ(Batches(), (std::vector<Names>{{"high", "normal"}, {"low"}}));
}

TEST_F(QueueTest, WhatFitsIntoOneBatchLeavesInTheOrderOfArrival) {
  Put(WaitAt("low", Priority::kLow, 5));
  Put(WaitAt("high", Priority::kHigh, 5));
  EXPECT_EQ(Batches(), (std::vector<Names>{{"low", "high"}}));
  Put(WaitAt("low", Priority::kLow, 5));
  Put(WaitAt("high", Priority::kHigh, 6));
  EXPECT_EQ(Batches(), (std::vector<Names>{{"high"}, {"low"}}));
}

TEST_F(QueueTest, WhatLeavesWithAllOthersWaitsNoMore) {
  const auto first = Wait("first"), second = Wait("second");
  Put(first);
  Put(second);
  Requests batch, expired;
  Request* all = nullptr;
  const BatchSize size = queue_.TakeAt(queue_.Now(), &batch, &expired, {}, &all);
  EXPECT_EQ(size.num_rows, 2);
  EXPECT_EQ(queue_.Cancel(*first), nullptr);
  Put(Wait("third"));
  EXPECT_EQ(queue_.Cancel(*second), nullptr);
  BatchQueue::AppendAll(all, &batch);
  EXPECT_EQ(NamesOf(batch), (Names{"first", "second"}));
  EXPECT_EQ(Batches(), (std::vector<Names>{{"third"}}));
}

TEST_F(QueueTest, StarvationIsBoundedByAWindowForEachLevel) {
  struct Case {
    Priority slow, fast;
    int levels;
  };
  for (const Case& one :
       {Case{Priority::kLow, Priority::kNormal, 1}, Case{Priority::kNormal, Priority::kHigh, 1},
        Case{Priority::kLow, Priority::kHigh, 2}}) {
    for (const bool overtakes : {true, false}) {
      now_s_ = 50.0;
      Put(WaitAt("slow", one.slow));
      now_s_ += one.levels * kWindowS * (overtakes ? 0.99 : 1.01);
      Put(WaitAt("fast", one.fast));
      EXPECT_EQ(Take().batch, Names{overtakes ? "fast" : "slow"});
      Take();
    }
  }
}

TEST_F(QueueTest, AWindowOfZeroKeepsTheOrderOfArrival) {
  BatchLimits limits;
  limits.priority_window_us = 0;
  BatchQueue queue(limits, clock_);
  PutInto(queue, WaitAt("low", Priority::kLow));
  now_s_ = 1e-6;
  PutInto(queue, WaitAt("high", Priority::kHigh));
  EXPECT_EQ(TakeFrom(queue).batch, (Names{"low", "high"}));
}

TEST_F(QueueTest, ExpiredRequestsMakeRoomAndAreReported) {
  Put(Wait("a", 20));
  Put(Wait("gone", 10, 1, 1.0));
  now_s_ = 1.0;
  EXPECT_EQ(Put(Wait("b", 10)), Names{"gone"});
  EXPECT_EQ(Batches(), (std::vector<Names>{{"a"}, {"b"}}));
}

TEST_F(QueueTest, ExpiredRequestsThatDidNotMakeEnoughRoomAreReportedAllTheSame) {
  Put(Wait("a", 20));
  Put(Wait("gone", 1, 1, 1.0));
  Put(Wait("b", 9));
  now_s_ = 1.0;
  Requests expired;
  EXPECT_TRUE(queue_.Put(Wait("c", 2), &expired));
  EXPECT_EQ(NamesOf(expired), Names{"gone"});
  EXPECT_EQ(queue_.num_rows(), 29);
  EXPECT_TRUE(Take().expired.empty());
}

TEST_F(QueueTest, ARefusalAllocatesNothing) {
  if (!kCountsAllocations) GTEST_SKIP() << "allocations are not counted";
  Fill();
  const auto refused = Wait("refused");
  Requests expired;
  const std::size_t before = NumAllocations();
  const auto full = queue_.Put(refused, &expired);
  EXPECT_EQ(NumAllocations(), before);
  ASSERT_TRUE(full);
  EXPECT_THROW(throw BatchQueue::ErrorOf(*full), QueueFullError);
  EXPECT_GT(NumAllocations(), before);
}

TEST_F(QueueTest, ABatchEndsOnceItHasEnoughRows) {
  for (const char* name : {"a", "b", "c", "d"}) Put(Wait(name, 2));
  Requests batch, expired;
  queue_.Take(&batch, &expired, {3});
  EXPECT_EQ(NamesOf(batch), (Names{"a", "b"}));
  batch.clear();
  queue_.Take(&batch, &expired, {1});
  EXPECT_EQ(NamesOf(batch), Names{"c"});
}

TEST_F(QueueTest, RoomIsNotLookedForWhereThereIsEnough) {
  Put(Wait("gone", 1, 1, 1.0));
  now_s_ = 2.0;
  EXPECT_TRUE(Put(Wait("a")).empty());
  EXPECT_EQ(Take().expired, Names{"gone"});
}

TEST_F(QueueTest, WithoutADelayNothingWaits) {
  EXPECT_EQ(queue_.ReadyAt(), std::nullopt);
  EXPECT_FALSE(queue_.has_delay());
  now_s_ = 3.0;
  Put(Wait("a"));
  EXPECT_EQ(queue_.ReadyAt(), 3.0);
}

TEST_F(QueueTest, AFullQueueSaysWhenToTryAgainFromHowFastItDrains) {
  // Ten rows every 20 ms, so two of them want 4 ms.
  for (int i = 0; i < 50; ++i) {
    Fill();
    Take();
    now_s_ += 0.02;
  }
  Take();
  Fill();
  EXPECT_EQ(HintFor(Wait("c", 2)), 4);
}

TEST_F(QueueTest, TheHintGrowsWhileABatchTakesLongerThanUsual) {
  for (int i = 0; i < 3; ++i) {
    Fill();
    Take();
    now_s_ += 0.02;
  }
  Fill();
  std::vector<std::int64_t> hints;
  for (int i = 0; i < 3; ++i) {
    hints.push_back(HintFor(Wait("c", 10)));
    now_s_ += 10.0;
  }
  EXPECT_LT(hints[0], hints[1]);
  EXPECT_LT(hints[1], hints[2]);
  EXPECT_LE(hints[2], 60'000);
}

TEST_F(QueueTest, IdleTimeIsNotTakenForSlowDraining) {
  for (int i = 0; i < 20; ++i) {
    Fill();
    while (queue_.num_requests() > 0) {
      Take();
      now_s_ += 0.01;
    }
    now_s_ += 3600.0;
  }
  Fill();
  EXPECT_EQ(HintFor(Wait("c", 10)), 10);
}

TEST_F(QueueTest, TheHintHasBounds) {
  for (const double rows_per_s : {1e9, 1e-9}) {
    now_s_ = 0;
    BatchQueue queue(Limits(), clock_);
    const auto hint = [&] {
      while (queue.num_rows() < 30) PutInto(queue, Wait("filler"));
      try {
        PutInto(queue, Wait("c"));
      } catch (const QueueFullError& error) {
        return error.retry_after_ms();
      }
      return std::int64_t{-1};
    };
    EXPECT_EQ(hint(), 100);
    TakeFrom(queue);
    now_s_ += 10 / rows_per_s;
    TakeFrom(queue);
    EXPECT_EQ(hint(), rows_per_s > 1 ? 1 : 60'000);
  }
}

}  // namespace

}  // namespace recsys
