// The policy by itself, and in a simulated server.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "engine/core/queue/policy.h"
#include "tests/core/queue/policy_simulator.h"

namespace recsys {
namespace {

double Linear(const BatchSize& size) {
  return 90e-6 + 22e-6 * static_cast<double>(size.num_rows) +
         0.1e-6 * static_cast<double>(size.num_ids);
}

BatchSize RowsOf(std::int64_t rows) { return {rows, 20 * rows}; }

/// Costs that are exactly known, so that decisions can be computed by hand.
BatchPolicy Known() {
  BatchPolicy policy;
  for (int i = 0; i < 200; ++i) {
    for (const std::int64_t rows : {1, 2, 8, 32, 128}) {
      policy.costs().Learn(RowsOf(rows), Linear(RowsOf(rows)));
    }
  }
  return policy;
}

BatchPolicy::State At(double now_s, std::int64_t rows, int num_free, bool may_run_here = false) {
  return {now_s, RowsOf(rows), may_run_here, num_free, false};
}

TEST(BatchCosts, LearnFixedRowsAndIdsFromMixedBatches) {
  BatchCosts costs;
  std::mt19937 random(1);
  std::uniform_int_distribution<std::int64_t> rows(1, 256), ids(1, 100);
  for (int i = 0; i < 500; ++i) {
    BatchSize size{rows(random), 0};
    size.num_ids = size.num_rows * ids(random);
    costs.Learn(size, Linear(size));
  }
  for (const BatchSize size : {BatchSize{1, 20}, {64, 64}, {64, 6400}, {256, 5000}}) {
    EXPECT_NEAR(costs.SecondsOf(size), Linear(size), 0.1 * Linear(size));
  }
}

TEST(BatchCosts, AreNotKnownBeforeSomeBatchesRan) {
  BatchCosts costs;
  EXPECT_FALSE(costs.is_known());
  for (int i = 0; i < 4; ++i) costs.Learn(RowsOf(1), 1e-4);
  EXPECT_TRUE(costs.is_known());
}

TEST(BatchCosts, FollowAModelThatBecomesSlower) {
  BatchPolicy policy = Known();
  for (int i = 0; i < 100; ++i) policy.costs().Learn(RowsOf(32), 3 * Linear(RowsOf(32)));
  const double expected = 3 * Linear(RowsOf(32));
  EXPECT_NEAR(policy.costs().SecondsOf(RowsOf(32)), expected, 0.1 * expected);
}

TEST(BatchCosts, APreemptedBatchMovesThemLittle) {
  BatchPolicy policy = Known();
  const double before = policy.costs().SecondsOf(RowsOf(8));
  policy.costs().Learn(RowsOf(8), 1.0);
  EXPECT_LT(policy.costs().SecondsOf(RowsOf(8)), 1.5 * before);
  policy.costs().Learn(RowsOf(8), std::nan(""));
  policy.costs().Learn(RowsOf(8), -1);
  EXPECT_LT(policy.costs().SecondsOf(RowsOf(8)), 1.5 * before);
}

TEST(BatchCosts, KeepWhatTheyKnowOfLargeBatchesWhileAllAreSmall) {
  BatchPolicy policy = Known();
  std::mt19937 random(2);
  std::normal_distribution<double> scatter(1, 0.1);
  for (int i = 0; i < 20'000; ++i) {
    policy.costs().Learn(RowsOf(1), Linear(RowsOf(1)) * std::max(scatter(random), 0.1));
  }
  const double expected = Linear(RowsOf(64));
  EXPECT_GT(policy.costs().SecondsOf(RowsOf(64)), 0.5 * expected);
  EXPECT_LT(policy.costs().SecondsOf(RowsOf(64)), 2 * expected);
  for (int i = 0; i < 5; ++i) policy.costs().Learn(RowsOf(64), expected);
  EXPECT_NEAR(policy.costs().SecondsOf(RowsOf(64)), expected, 0.2 * expected);
}

TEST(BatchPolicy, AShortBatchRunsHereWhereNothingElseRuns) {
  const BatchPolicy policy = Known();
  EXPECT_EQ(policy.Decide(At(0, 1, 1, true)), Act::kRunHere);
  EXPECT_EQ(policy.Decide(At(0, 1, 1, false)), Act::kWake);
}

TEST(BatchPolicy, ABusyServerCollectsTheNextBatchMeanwhile) {
  BatchPolicy policy = Known();
  double now_s = 0;
  for (int i = 0; i < 1000; ++i) policy.Arrived(now_s += 200e-6);
  EXPECT_EQ(policy.Decide(At(now_s, 1, 1, true)), Act::kRunHere);
  for (int i = 0; i < 1000; ++i) policy.Arrived(now_s += 50e-6);
  EXPECT_EQ(policy.Decide(At(now_s, 1, 1, true)), Act::kWake);
  EXPECT_EQ(policy.Decide(At(now_s + 0.1, 1, 1, true)), Act::kRunHere);
}

TEST(BatchPolicy, ALongBatchRunsInAnExecutor) {
  EXPECT_EQ(Known().Decide(At(0, 200, 1, true)), Act::kWake);
}

TEST(BatchPolicy, ABatchOfUnknownDurationRunsInAnExecutor) {
  EXPECT_EQ(BatchPolicy().Decide(At(0, 1, 1, true)), Act::kWake);
}

TEST(BatchPolicy, AFurtherExecutorStartsWhereTheRunningBatchTakesLonger) {
  BatchPolicy policy = Known();
  policy.Began(RowsOf(128), 0, 0);
  EXPECT_EQ(policy.Decide(At(1e-4, 1, 1)), Act::kWake);
  EXPECT_EQ(policy.Decide(At(1e-4, 1, 0)), Act::kLeave);
  // It is about to end.
  EXPECT_EQ(policy.Decide(At(Linear(RowsOf(128)) - 1e-5, 1, 1)), Act::kLeave);
}

TEST(BatchPolicy, ABatchThatIsFarOverdueDoesNotHoldUpTheOthers) {
  BatchPolicy policy = Known();
  policy.Began(RowsOf(1), 0, 0);
  const double looks_s = policy.LooksAgainS(0);
  EXPECT_GT(looks_s, Linear(RowsOf(1)));
  EXPECT_EQ(policy.Decide(At(looks_s, 1, 1)), Act::kWake);
}

TEST(BatchPolicy, ExecutorsThatSlowEachOtherDownDoNotStart) {
  BatchPolicy policy = Known();
  for (int i = 0; i < 100; ++i) {
    const int number = policy.Began(RowsOf(32), 0, 1);
    policy.Ended(number, 2.5 * Linear(RowsOf(32)), 1);
  }
  EXPECT_GT(policy.slowdown(), 1.8);
  policy.Began(RowsOf(32), 0, 0);
  EXPECT_EQ(policy.Decide(At(1e-5, 32, 1)), Act::kLeave);
  EXPECT_FALSE(policy.GoesOn(At(1e-5, 32, 1)));
}

TEST(BatchPolicy, TheSlowdownIsForgottenWhileBatchesRunAlone) {
  BatchPolicy policy = Known();
  for (int i = 0; i < 100; ++i) {
    policy.Ended(policy.Began(RowsOf(32), 0, 1), 2.5 * Linear(RowsOf(32)), 1);
  }
  for (int i = 0; i < 5'000; ++i) {
    policy.Ended(policy.Began(RowsOf(32), 0, 0), Linear(RowsOf(32)), 0);
  }
  EXPECT_LT(policy.slowdown(), 1.05);
}

TEST(BatchPolicy, SmallBatchesWaitToGrowWhereProcessorsAreShort) {
  BatchPolicy policy = Known();
  for (int i = 0; i < 500; ++i) {
    policy.Ended(policy.Began(RowsOf(32), 0, 0), Linear(RowsOf(32)), 0, true);
  }
  EXPECT_GT(policy.shortage(), 0.9);
  policy.Began(RowsOf(64), 0, 0);
  EXPECT_EQ(policy.Decide(At(1e-5, 2, 1)), Act::kLeave);
  EXPECT_EQ(policy.Decide(At(1e-5, 64, 1)), Act::kWake);
  EXPECT_EQ(policy.ShareOf(At(0, 32, 1)), 32);
  // But not behind a very long one.
  policy.Ended(0, 0, 0);
  policy.Began(RowsOf(10'000), 0, 0);
  EXPECT_EQ(policy.Decide(At(1e-5, 2, 1)), Act::kWake);
}

TEST(BatchPolicy, WakingThatTakesLongIsAvoided) {
  BatchPolicy policy = Known();
  for (int i = 0; i < 100; ++i) policy.Woke(1e-3);
  policy.Began(RowsOf(32), 0, 0);
  EXPECT_EQ(policy.Decide(At(0, 8, 1)), Act::kLeave);
}

TEST(BatchPolicy, FreeExecutorsShareWhatWaits) {
  const BatchPolicy policy = Known();
  EXPECT_EQ(policy.ShareOf(At(0, 256, 3)), 64);
  EXPECT_EQ(policy.ShareOf(At(0, 256, 0)), 256);
  // Too little to be worth a second batch.
  EXPECT_EQ(policy.ShareOf(At(0, 8, 3)), 8);
  // Enough for three, not for eight.
  EXPECT_GT(policy.ShareOf(At(0, 24, 7)), 5);
}

TEST(BatchPolicy, ABatchIsOverBeforeLongIfThereIsALightClient) {
  const BatchPolicy policy = Known();
  EXPECT_EQ(policy.ShareOf(At(0, 256, 0)), 256);
  BatchPolicy::State state = At(0, 256, 0);
  state.has_light_client = true;
  const std::int64_t most = policy.ShareOf(state);
  EXPECT_LT(most, 128);
  // However many wait, and a batch still costs little beside its rows.
  state.waiting = RowsOf(8'192);
  EXPECT_NEAR(static_cast<double>(policy.ShareOf(state)), static_cast<double>(most), 1);
  EXPECT_GT(Linear(RowsOf(most)), 12 * Linear({0, 0}));
}

TEST(BatchPolicy, ABatchMayBeLongWhereEachHasAHighFixedCost) {
  BatchPolicy policy;
  for (int i = 0; i < 200; ++i) {
    for (const std::int64_t rows : {1, 8, 128}) {
      policy.costs().Learn({rows, 0}, 1e-3 + 1e-6 * static_cast<double>(rows));
    }
  }
  EXPECT_EQ(policy.ShareOf({0, {8'192, 0}, false, 0, true}), 8'192);
}

TEST(BatchPolicy, ADroppedBatchTeachesNothing) {
  BatchPolicy policy;
  for (int i = 0; i < 10; ++i) policy.Dropped(policy.Began({}, 0, 0));
  EXPECT_FALSE(policy.costs().is_known());
  EXPECT_EQ(policy.num_running(), 0);
}

struct Row {
  int in_flight;
  std::int64_t rows;
};

class SimulatedServer : public testing::TestWithParam<std::tuple<int, Row>> {
 protected:
  SimulatedServer() {
    load_.num_processors = std::get<0>(GetParam());
    load_.in_flight = std::get<1>(GetParam()).in_flight;
    load_.rows = std::get<1>(GetParam()).rows;
  }
  SimulatedLoad load_;
};

TEST_P(SimulatedServer, IsNearlyAsFastAsWithTheBestFixedNumber) {
  // With a fixed number, loads fall into step by chance: some numbers are lucky with some loads.
  double best = 0;
  for (int num = 1; num <= load_.num_processors; ++num) {
    best = std::max(best, Simulate(load_, num).requests_per_s);
  }
  EXPECT_GT(Simulate(load_).requests_per_s, 0.88 * best);
}

TEST_P(SimulatedServer, NeverRunsMoreThanTheBound) {
  EXPECT_LE(Simulate(load_).most_executors, load_.num_processors);
}

INSTANTIATE_TEST_SUITE_P(Loads, SimulatedServer,
                         testing::Combine(testing::Values(1, 2, 4, 8),
                                          testing::Values(Row{1, 1}, Row{16, 1}, Row{64, 1},
                                                          Row{8, 32}, Row{1, 200}, Row{8, 200})));

TEST(Simulation, OneRequestAtATimeRunsInThePollingThread) {
  SimulatedLoad load;
  const SimulatedRun run = Simulate(load);
  EXPECT_EQ(run.num_here, run.num_batches);
}

TEST(Simulation, ManySingleSamplesFormBatches) {
  SimulatedLoad load;
  load.in_flight = 64;
  const SimulatedRun run = Simulate(load);
  EXPECT_GT(run.requests_per_s * 0.5 / run.num_batches, 6);
}

TEST(BatchPolicy, ARequestIsCutOverThoseThatAreIdle) {
  const BatchPolicy policy = Known();
  // 1 000 rows take 24 ms, and a part is worth 0.14 ms.
  EXPECT_EQ(policy.NumParts(At(0, 1000, 0)), 1);
  EXPECT_EQ(policy.NumParts(At(0, 1000, 1)), 2);
  EXPECT_EQ(policy.NumParts(At(0, 1000, 7)), 8);
  EXPECT_EQ(policy.NumParts(At(0, 1, 7)), 1);
  // 20 rows take 0.57 ms, of which 0.48 ms can be shared.
  EXPECT_EQ(policy.NumParts(At(0, 20, 7)), 3);
  // 16 rows take 0.47 ms: two parts would take 0.35 ms.
  EXPECT_EQ(policy.NumParts(At(0, 16, 7)), 1);
  EXPECT_EQ(policy.NumParts(At(0, 8, 7)), 1);
  EXPECT_EQ(BatchPolicy().NumParts(At(0, 1000, 7)), 1);
}

TEST(BatchPolicy, APartComputesTheContextAgain) {
  BatchPolicy policy;
  for (int i = 0; i < 400; ++i) {
    for (const BatchSize& size : {BatchSize{1, 0}, {1, 20'000}, {64, 0}, {64, 20'000}, {64, 640}}) {
      policy.costs().Learn(size, Linear(size));
    }
  }
  // 30 rows take 0.66 ms, their IDs 2 ms.
  BatchPolicy::State state = At(0, 30, 7);
  state.waiting.num_ids = 20'000;
  EXPECT_EQ(policy.NumParts(state), 8);
  // A part takes 2.09 ms before its rows.
  state.num_context_ids = 20'000;
  EXPECT_EQ(policy.NumParts(state), 1);
  // 300 rows take 6.6 ms: three parts take 4.3 ms of 8.7, and four would be worth no more than
  // what a part repeats.
  state.waiting.num_rows = 300;
  EXPECT_EQ(policy.NumParts(state), 3);
  // Computed once, it leaves 6.6 ms of 8.7 to all.
  state.shares_context = true;
  EXPECT_EQ(policy.NumParts(state), 8);
  // 0.66 ms of 2.75: too little.
  state.waiting.num_rows = 30;
  EXPECT_EQ(policy.NumParts(state), 1);
}

TEST(BatchPolicy, ARequestIsNotCutWhereThePartsSlowEachOtherDown) {
  BatchPolicy policy = Known();
  for (int i = 0; i < 100; ++i) {
    const int number = policy.Began(RowsOf(1000), 0, 0);
    policy.EndedInParts(
        number, {{RowsOf(500), 3 * Linear(RowsOf(500))}, {RowsOf(500), 3 * Linear(RowsOf(500))}},
        false);
  }
  EXPECT_GT(policy.slowdown(), 1.5);
  EXPECT_EQ(policy.NumParts(At(0, 1000, 1)), 1);
  EXPECT_EQ(policy.NumParts(At(0, 1000, 3)), 4);
}

TEST(BatchPolicy, PartsTeachTheCostsOfTheirSize) {
  BatchPolicy policy = Known();
  for (int i = 0; i < 50; ++i) {
    const int number = policy.Began(RowsOf(1000), 0, 0);
    EXPECT_EQ(policy.num_running(), 1);
    policy.EndedInParts(number, {{RowsOf(500), Linear(RowsOf(500))}, {RowsOf(500), 0}}, false);
  }
  EXPECT_EQ(policy.num_running(), 0);
  EXPECT_NEAR(policy.costs().SecondsOf(RowsOf(1000)), Linear(RowsOf(1000)),
              0.1 * Linear(RowsOf(1000)));
}

TEST(BatchPolicy, MoreThanOneBatchOfWorkIsSharedAlthoughExecutorsSlowEachOtherDown) {
  BatchPolicy policy = Known();
  for (int i = 0; i < 100; ++i) {
    policy.Ended(policy.Began(RowsOf(128), 0, 1), 1.05 * Linear(RowsOf(128)), 1);
  }
  EXPECT_GT(policy.slowdown(), 1.001);
  // One request of 500 rows runs, and a hundred wait.
  policy.Began(RowsOf(500), 0, 0);
  EXPECT_EQ(policy.Decide(At(0, 50'000, 31)), Act::kWake);
  EXPECT_EQ(policy.Decide(At(0, 50'000, 0)), Act::kLeave);
}

}  // namespace
}  // namespace recsys
