// Batches that the polling thread runs at the end of its turn.

#include <chrono>
#include <future>
#include <thread>
#include <utility>
#include <vector>

#include "engine/core/executor/pending_decisions.h"
#include "tests/core/executor/executor_test.h"

namespace recsys {
namespace {

TEST_F(ExecutorTest, AtTheEndOfAPollingTurnAShortBatchRunsInThePollingThread) {
  OpenWithStoppedClock();
  const std::thread::id here = std::this_thread::get_id();
  std::vector<bool> ran_here;
  opened_.model->on_predict = [&](const Batch&) {
    ran_here.push_back(std::this_thread::get_id() == here);
  };
  PendingDecisions pending;
  EXPECT_EQ(pending.WaitS(), kNever);
  const auto a = Submit("a", {{1}}), b = Submit("b", {{2}, {3}});
  EXPECT_EQ(answers_.num_done(), 0);
  EXPECT_EQ(pending.WaitS(), 0);
  pending.AfterRound();
  EXPECT_EQ(answers_.num_done(), 2);
  ExpectAnswered(*a);
  ExpectAnswered(*b);
  EXPECT_EQ(ran_here, std::vector<bool>{true});
  EXPECT_EQ(pending.WaitS(), kNever);
}

TEST_F(ExecutorTest, ALongBatchLeavesThePollingThreadFree) {
  // As seen while it was warmed up.
  opened_ = HostSum(DeliverAtOnce);
  opened_.model->on_predict = [](const Batch&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  };
  opened_.servable->Open();
  const std::thread::id here = std::this_thread::get_id();
  opened_.model->on_predict = [&](const Batch&) { EXPECT_NE(std::this_thread::get_id(), here); };
  PendingDecisions pending;
  const auto a = Submit("a", {{1}});
  pending.AfterRound();
  answers_.Wait(1);
  ExpectAnswered(*a);
}

TEST_F(ExecutorTest, NothingRunsInThePollingThreadWhileAnythingElseRuns) {
  Open();
  Plug();
  PendingDecisions pending;
  const auto a = Submit("a", {{1}});
  pending.AfterRound();
  EXPECT_EQ(answers_.num_done(), 0);
  opened_.model->OpenGate();
  answers_.Wait(2);
  ExpectAnswered(*a);
}

TEST_F(ExecutorTest, ALightClientsRequestRunsInThePollingThreadBesideOthers) {
  OpenWithStoppedClock();
  const std::thread::id here = std::this_thread::get_id();
  std::promise<void> began, may_end;
  std::shared_future<void> end = may_end.get_future();
  opened_.model->on_predict = [&, is_first = true](const Batch&) mutable {
    if (std::this_thread::get_id() == here) return;
    if (std::exchange(is_first, false)) began.set_value();
    end.wait();
  };
  Submit("running", {{1}});
  began.get_future().wait();
  PendingDecisions pending;
  const auto waiting = Submit("waiting", {{2}, {4}, {5}});
  const auto light = Make("light", {{3}});
  light->client = 1;
  light->is_light = true;
  opened_.servable->executor().Submit(light);
  pending.AfterRound();
  EXPECT_EQ(answers_.names(), std::vector<std::string>{"light"});
  may_end.set_value();
  answers_.Wait(3);
  ExpectAnswered(*light);
  ExpectAnswered(*waiting);
}

TEST_F(ExecutorTest, WhatALateBatchHoldsUpIsLookedAtAgain) {
  VersionSettings settings;
  settings.num_executors = 2;
  Open(settings);
  Plug();
  PendingDecisions pending;
  const auto a = Submit("a", {{1}});
  // The batch that runs never ends by itself: sooner or later a further executor is started.
  const double until_s = MonotonicSeconds() + 10;
  while (opened_.model->batches().size() < 2 && MonotonicSeconds() < until_s) pending.AfterRound();
  EXPECT_EQ(opened_.model->batches().size(), 2U);
  opened_.model->OpenGate();
  answers_.Wait(2);
  ExpectAnswered(*a);
}

}  // namespace
}  // namespace recsys
