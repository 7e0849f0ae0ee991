// A servable version without a gateway: batches, deadlines, warm-up, pauses, close.

#include <gtest/gtest.h>
#include <sched.h>

#include <chrono>
#include <future>

#include "base/clock.h"
#include "base/text.h"
#include "recsys/error.h"
#include "tests/core/executor/executor_test.h"

namespace recsys {
namespace {

ErrorKind KindOf(const std::function<void()>& function, std::string* text = nullptr) {
  try {
    function();
  } catch (const Error& error) {
    if (text != nullptr) *text = error.what();
    return error.kind();
  }
  ADD_FAILURE() << "nothing was thrown";
  return ErrorKind::kInternal;
}

TEST_F(ExecutorTest, RequestsThatWaitGoTogetherAndEachGetsItsOwnRows) {
  Open();
  Plug();
  const auto a = Submit("a", {{1, 2}}), b = Submit("b", {{3}, {}, {4, 5, 6}}), c = Submit("c", {}),
             d = Submit("d", {{8}, {9}});
  opened_.model->OpenGate();
  answers_.Wait(5);
  EXPECT_EQ(opened_.model->batches(), (std::vector<std::int64_t>{1, 6}));
  for (const auto& request : {a, b, c, d}) ExpectAnswered(*request);
}

TEST_F(ExecutorTest, ABatchsRequestsKnowItsTimes) {
  Open();
  Submit("a", {{1}, {2}});
  answers_.Wait(1);
  const BatchTimes times = answers_.Of("a").times;
  EXPECT_GT(times.taken_s, 0);
  EXPECT_LE(times.taken_s, times.collated_s);
  EXPECT_LE(times.collated_s, times.executed_s);
  EXPECT_LE(times.executed_s, times.responded_s);
  EXPECT_EQ(times.num_requests, 1);
  EXPECT_EQ(times.num_rows, 2);
}

TEST_F(ExecutorTest, RankingRequestsRunInABatchOfTheirOwn) {
  Open({}, true);
  Plug();
  const auto plain = Submit("plain", {{1}, {2}});
  const auto ranking = Make("ranking", {{5}, {5}, {5}}, true), other = Make("other", {{6}}, true);
  opened_.servable->executor().Submit(ranking);
  const auto last = Submit("last", {{9}});
  opened_.servable->executor().Submit(other);
  opened_.model->OpenGate();
  answers_.Wait(5);
  EXPECT_EQ(opened_.model->batches(), (std::vector<std::int64_t>{1, 3, 4}));
  for (const auto& request : {plain, ranking, last, other}) ExpectAnswered(*request);
}

TEST_F(ExecutorTest, AnExpiredRequestIsAnsweredWithoutBeingComputed) {
  Open();
  Plug();
  const auto late = Make("late", {{1}});
  late->deadline_s = 0;
  opened_.servable->executor().Submit(late);
  const auto in_time = Submit("in time", {{2}, {3}});
  opened_.model->OpenGate();
  answers_.Wait(3);
  const Status status = answers_.Of("late").status;
  EXPECT_EQ(status.code, StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.text, "the deadline passed while the request waited for its batch");
  EXPECT_EQ(opened_.model->batches(), (std::vector<std::int64_t>{1, 2}));
  ExpectAnswered(*in_time);
}

TEST_F(ExecutorTest, RequestsThatLeftToMakeRoomAreAnsweredAtOnce) {
  VersionSettings settings;
  settings.limits.max_request_rows = settings.limits.max_queue_rows = 2;
  Open(settings);
  Plug();
  const auto late = Make("late", {{1}, {2}});
  late->deadline_s = 0;
  opened_.servable->executor().Submit(late);
  EXPECT_EQ(answers_.num_done(), 0);
  Submit("next", {{3}, {4}});
  EXPECT_EQ(answers_.Of("late").status.code, StatusCode::kDeadlineExceeded);
  opened_.model->OpenGate();
}

TEST_F(ExecutorTest, ACancelledRequestIsNotComputed) {
  Open();
  Plug();
  const auto unwanted = Submit("unwanted", {{1}});
  EXPECT_TRUE(opened_.servable->executor().Cancel(*unwanted));
  EXPECT_FALSE(opened_.servable->executor().Cancel(*unwanted));
  opened_.model->OpenGate();
  answers_.Wait(1);
  opened_.servable->Close();
  EXPECT_EQ(opened_.model->batches(), std::vector<std::int64_t>{1});
  EXPECT_EQ(answers_.names(), std::vector<std::string>{"plug"});
}

TEST_F(ExecutorTest, CloseAnswersWhatWasAcceptedAndTakesNoMore) {
  Open();
  Plug();
  for (const char* name : {"a", "b", "c"}) Submit(name, {{1}});
  auto closing = std::async(std::launch::async, [this] { opened_.servable->Close(); });
  opened_.model->OpenGate();
  closing.get();
  EXPECT_EQ(answers_.num_done(), 4);
  std::string text;
  EXPECT_EQ(KindOf([this] { Submit("too late", {{1}}); }, &text), ErrorKind::kDraining);
  EXPECT_EQ(text, "the server is stopping; send the request to another one");
  opened_.servable->Close();
}

TEST_F(ExecutorTest, CloseStartsNoThreadWhileItWaitsForTheOthers) {
  VersionSettings settings;
  settings.num_executors = 4;
  settings.limits.max_batch_rows = 1;
  Open(settings);
  struct Other : Slots::Waiter {
    void Granted() override {}
  } other;
  Slots slots(4);
  Executor executor(*opened_.servable, DeliverAtOnce, MonotonicSeconds, slots);
  executor.Start({});
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(slots.Take(&other));
  opened_.model->CloseGate();
  for (const char* name : {"a", "b", "c", "d"}) executor.Submit(Make(name, {{1}}));
  opened_.model->WaitUntilStarted(1);
  auto closing = std::async(std::launch::async, [&] { executor.Close(); });
  WaitUntilRefused(executor);
  for (int i = 0; i < 3; ++i) slots.Release();
  opened_.model->OpenGate();
  closing.get();
  EXPECT_EQ(answers_.num_done(), 4);
}

TEST_F(ExecutorTest, CloseEndsIfTheLastRequestLeavesWhileItWaitsForASlot) {
  Open();
  Slots slots(1);
  Executor executor(*opened_.servable, DeliverAtOnce, MonotonicSeconds, slots);
  executor.Start({});
  ASSERT_TRUE(slots.TakeIfIdle());
  const auto request = Make("a", {{1}});
  executor.Submit(request);
  auto closing = std::async(std::launch::async, [&] { executor.Close(); });
  WaitUntilRefused(executor);
  EXPECT_TRUE(executor.Cancel(*request));
  slots.Release();
  closing.get();
  EXPECT_EQ(slots.num_taken(), 0);
  EXPECT_EQ(answers_.num_done(), 0);
}

TEST_F(ExecutorTest, SeveralExecutorsComputeAtTheSameTime) {
  VersionSettings settings;
  settings.num_executors = 2;
  Open(settings);
  opened_.model->CloseGate();
  const auto a = Submit("a", {{1}});
  opened_.model->WaitUntilStarted(1);
  const auto b = Submit("b", {{2}});
  opened_.model->WaitUntilStarted(2);  // while the first one runs
  opened_.model->OpenGate();
  answers_.Wait(2);
  ExpectAnswered(*a);
  ExpectAnswered(*b);
}

TEST_F(ExecutorTest, WorkBetweenBatchesWaitsForTheRunningOneAndHoldsUpTheNext) {
  VersionSettings settings;
  settings.num_executors = 2;
  Open(settings);
  Plug();
  std::promise<void> inside, leave;
  std::vector<std::int64_t> at_start, at_end;
  auto changing = std::async(std::launch::async, [&] {
    opened_.model->on_delta = [&] {
      at_start = opened_.model->batches();
      inside.set_value();
      leave.get_future().wait();
      at_end = opened_.model->batches();
    };
    EXPECT_EQ(opened_.servable->ApplyDelta("a.delta"), 3);
  });
  EXPECT_EQ(inside.get_future().wait_for(std::chrono::milliseconds(20)),
            std::future_status::timeout);
  opened_.model->OpenGate();
  answers_.Wait(1);
  const auto next = Submit("next", {{1}, {2}, {3}});
  leave.set_value();
  changing.get();
  answers_.Wait(2);
  EXPECT_EQ(at_start, std::vector<std::int64_t>{1});
  EXPECT_EQ(at_end, std::vector<std::int64_t>{1});
  EXPECT_EQ(opened_.model->batches(), (std::vector<std::int64_t>{1, 3}));
  ExpectAnswered(*next);
}

TEST_F(ExecutorTest, WhatWorkBetweenBatchesThrowsReachesItsCallerAndBatchesGoOn) {
  Open();
  opened_.model->on_delta = [] { throw Error(ErrorKind::kDelta, "no such delta"); };
  EXPECT_EQ(KindOf([this] { opened_.servable->ApplyDelta("a.delta"); }), ErrorKind::kDelta);
  EXPECT_EQ(opened_.servable->metrics().Totals().deltas_failed, 1);
  const auto after = Submit("after", {{1}});
  answers_.Wait(1);
  ExpectAnswered(*after);
}

TEST_F(ExecutorTest, ABatchMayWaitToBeFilledWhereItIsAskedFor) {
  VersionSettings settings;
  settings.limits.max_delay_us = 60'000'000;
  settings.limits.max_batch_rows = 6;
  Open(settings);
  opened_.model->CloseGate();
  opened_.model->OpenGate();
  Submit("three rows", {{1}, {2}, {3}});
  Submit("two rows", {{1}, {2}});
  EXPECT_TRUE(opened_.model->batches().empty());
  Submit("one row more fills it", {{1}});
  answers_.Wait(3);
  EXPECT_EQ(opened_.model->batches(), std::vector<std::int64_t>{6});
  Submit("closing ends the wait", {{1}});
  opened_.servable->Close();
  EXPECT_EQ(opened_.model->batches(), (std::vector<std::int64_t>{6, 1}));
}

TEST_F(ExecutorTest, AWaitToBeFilledEndsAfterTheDelayAndBeforeADeadline) {
  for (const std::int64_t delay_us : {2'000, 10'000'000}) {
    VersionSettings settings;
    settings.limits.max_delay_us = delay_us;
    settings.num_executors = 3;
    Open(settings);
    Submit("first", {{1}});
    const auto last = Make("last" + std::to_string(delay_us), {{2}});
    // So that less than the delay would be left.
    last->deadline_s = MonotonicSeconds() + 10.0;
    opened_.servable->executor().Submit(last);
    answers_.Wait(delay_us == 2'000 ? 2 : 4);
    ExpectAnswered(*last);
    opened_.servable->Close();
  }
}

TEST_F(ExecutorTest, ExecutorsStayOnTheirProcessorsAndHaveNames) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  std::int64_t first = 0;
  while (!CPU_ISSET(static_cast<std::size_t>(first), &allowed)) ++first;
  VersionSettings settings;
  settings.cpus = {first};
  settings.num_executors = 2;
  opened_ = HostSum(DeliverAtOnce, settings);
  std::mutex mutex;
  std::map<std::string, int> seen;
  opened_.model->on_predict = [&](const Batch&) {
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    sched_getaffinity(0, sizeof(cpus), &cpus);
    char name[16] = {};
    pthread_getname_np(pthread_self(), name, sizeof(name));
    const std::lock_guard<std::mutex> lock(mutex);
    seen[name] = std::max(seen[name], CPU_COUNT(&cpus));
  };
  opened_.servable->Open();
  EXPECT_EQ(seen, (std::map<std::string, int>{{"executor-sum-0", 1}}));
  // A further thread is started once it is needed.
  opened_.model->CloseGate();
  Submit("a", {{1}});
  opened_.model->WaitUntilStarted(1);
  Submit("b", {{2}});
  opened_.model->WaitUntilStarted(2);
  opened_.model->OpenGate();
  answers_.Wait(2);
  opened_.servable->Close();
  EXPECT_EQ(seen, (std::map<std::string, int>{{"executor-sum-0", 1}, {"executor-sum-1", 1}}));
}

TEST_F(ExecutorTest, AFullQueueRefusesWithoutLosingWhatHasExpired) {
  VersionSettings settings;
  settings.limits.max_request_rows = settings.limits.max_queue_rows = 3;
  Open(settings);
  Plug();
  const auto late = Make("late", {{1}});
  late->deadline_s = 0;
  opened_.servable->executor().Submit(late);
  const auto kept = Submit("kept", {{1}, {2}});
  std::string text;
  EXPECT_EQ(KindOf([this] { Submit("too much", {{1}, {2}}); }, &text), ErrorKind::kQueueFull);
  EXPECT_EQ(text, "queue: 2 rows wait, at most 3 may; try again later");
  EXPECT_EQ(answers_.Of("late").status.code, StatusCode::kDeadlineExceeded);
  EXPECT_EQ(opened_.servable->metrics().Totals().pending_rows, 2);
  opened_.model->OpenGate();
  answers_.Wait(3);
  ExpectAnswered(*kept);
}

TEST_F(ExecutorTest, AProcessorThatIsNotThereIsAnErrorAtTheStart) {
  VersionSettings settings;
  settings.cpus = {65'000};
  opened_ = HostSum(DeliverAtOnce, settings);
  std::string text;
  EXPECT_EQ(KindOf([this] { opened_.servable->Open(); }, &text), ErrorKind::kExecution);
  EXPECT_EQ(text, "the model failed to warm up: [Errno 22] Invalid argument");
}

TEST_F(ExecutorTest, AModelThatCannotWarmUpIsAnErrorAtTheStartAndLeavesNothing) {
  for (const std::int64_t num_executors : {1, 3}) {
    VersionSettings settings;
    settings.num_executors = num_executors;
    opened_ = HostSum(DeliverAtOnce, settings);
    opened_.model->on_predict = [](const Batch&) { throw std::runtime_error("no warmth"); };
    std::string text;
    EXPECT_EQ(KindOf([this] { opened_.servable->Open(); }, &text), ErrorKind::kExecution);
    EXPECT_EQ(text, "the model failed to warm up: no warmth");
  }
}

TEST_F(ExecutorTest, WarmUpIsNotCountedAndBatchesAre) {
  Open();
  EXPECT_EQ(opened_.servable->metrics().Totals().batch_rows.count(), 0);
  Submit("a", {{1}, {2}});
  answers_.Wait(1);
  const VersionTotals totals = opened_.servable->metrics().Totals();
  EXPECT_EQ(totals.batch_rows.sum(), 2);
  EXPECT_EQ(totals.accepted, 1);
}

TEST_F(ExecutorTest, AClosedVersionTakesNoDelta) {
  Open();
  opened_.servable->Close();
  EXPECT_EQ(KindOf([this] { opened_.servable->ApplyDelta("a.delta"); }), ErrorKind::kModelChange);
}

}  // namespace
}  // namespace recsys
