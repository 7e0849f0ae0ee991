#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "engine/counters/ring.h"
#include "engine/counters/version_counters.h"
#include "format/json/json.h"

namespace recsys {
namespace {

TEST(Outcomes, EveryStatusCodeHasOne) {
  const std::pair<StatusCode, const char*> expected[] = {
      {StatusCode::kOk, "ok"},
      {StatusCode::kInvalidArgument, "invalid"},
      {StatusCode::kNotFound, "not_found"},
      {StatusCode::kResourceExhausted, "rejected"},
      {StatusCode::kDeadlineExceeded, "expired"},
      {StatusCode::kCancelled, "cancelled"},
      {StatusCode::kUnavailable, "unavailable"},
      {StatusCode::kInternal, "failed"},
      {StatusCode::kUnknown, "failed"},
  };
  for (const auto& [code, name] : expected) EXPECT_STREQ(OutcomeName(OutcomeOf(code)), name);
}

TEST(Histogram, CountsAValueThatEqualsABoundInThatBoundsBucket) {
  Histogram histogram(kRowsBounds);
  histogram.Add(2.0);
  histogram.Add(2.5);
  histogram.Add(1e9);
  EXPECT_EQ(histogram.in_bucket(1), 1);
  EXPECT_EQ(histogram.in_bucket(2), 1);
  EXPECT_EQ(histogram.in_bucket(kRowsBounds.size), 1);
  EXPECT_EQ(histogram.count(), 3);
  EXPECT_EQ(histogram.sum(), 1e9 + 4.5);
}

TEST(VersionCounters, AreRightWhenManyThreadsCountAtOnce) {
  VersionCounters counters;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&counters] {
      for (int j = 0; j < 1000; ++j) {
        counters.Accepted(1);
        counters.Answered(0.5);
      }
    });
  }
  for (int i = 0; i < 100; ++i) {
    const VersionTotals totals = counters.Totals();
    EXPECT_EQ(totals.of(Outcome::kOk), totals.request.count());
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(counters.Totals().of(Outcome::kOk), 4000);
  EXPECT_EQ(counters.Totals().accepted, 4000);
}

TEST(VersionCounters, AreWrittenAsJson) {
  VersionCounters counters;
  counters.Answered(0.0015);
  counters.Count(Outcome::kRejected);
  counters.Accepted(1);
  counters.ObserveStages({1e-6, 0.25}, 0.001, 0.0035, 1e-7);
  counters.ObserveBatch(2, 300, 12345);
  counters.SetPending(3, 4, 5);
  counters.ShadowFailed();
  counters.ShadowDropped();
  counters.RequestCut();
  counters.DeltaApplied();
  counters.DeltaFailed();
  VersionTotals totals = counters.Totals();
  totals.context_cache = {1, 2, 3, 4, 5, 6};
  const Json json = ParseJson(totals.Json());
  EXPECT_EQ(json["context_cache"], (Json{{"hits", 1},
                                         {"misses", 2},
                                         {"evictions", 3},
                                         {"entries", 4},
                                         {"bytes", 5},
                                         {"grown", 6}}));
  EXPECT_EQ(json["outcomes"]["ok"], 1);
  EXPECT_EQ(json["outcomes"]["rejected"], 1);
  EXPECT_EQ(json["outcomes"].size(), kNumOutcomes);
  EXPECT_EQ(json["accepted"], 1);
  EXPECT_EQ(json["stages"]["queue"]["sum"], 0.25 + 1e-6);
  EXPECT_EQ(json["stages"]["execute"]["bounds"].size(), 17U);
  EXPECT_EQ(json["stages"]["execute"]["counts"].size(), 18U);
  EXPECT_EQ(json["stages"]["execute"]["counts"][6], 1);
  EXPECT_EQ(json["request"]["sum"], 0.0015);
  EXPECT_EQ(json["batch_requests"]["sum"], 2);
  EXPECT_EQ(json["batch_rows"]["sum"], 300);
  EXPECT_EQ(json["batch_ids"]["sum"], 12345);
  EXPECT_GT(json["last_batch_s"].get<double>(), 1.5e9);
  EXPECT_EQ(json["pending"], (Json{{"rows", 3}, {"ids", 4}, {"bytes", 5}}));
  EXPECT_EQ(json["shadow"], (Json{{"failed", 1}, {"dropped", 1}}));
  EXPECT_EQ(json["cut_requests"], 1);
  EXPECT_EQ(json["deltas_applied"], 1);
  EXPECT_EQ(json["deltas_failed"], 1);
}

using Any = std::vector<std::variant<int, std::string>>;

TEST(Ring, GivesRecordsInTheirOrderAndAtMostSoMany) {
  Ring<std::string> ring(10, 1000);
  for (const char* text : {"a", "b", "c"}) EXPECT_TRUE(ring.Push(text, 1));
  Any taken;
  EXPECT_TRUE(ring.Take(2, &taken));
  EXPECT_FALSE(ring.Take(2, &taken));
  EXPECT_EQ(taken, (Any{"a", "b", "c"}));
}

TEST(Ring, DropsAndCountsWhatExceedsItsEntriesOrItsBytes) {
  Ring<std::string> few(2, 1000), small(10, 100);
  for (int i = 0; i < 5; ++i) few.Push("x", 1);
  EXPECT_EQ(few.num_dropped(), 3);
  EXPECT_TRUE(small.Push("x", 60));
  EXPECT_FALSE(small.HasRoom(60));
  EXPECT_FALSE(small.Push("y", 60));
  EXPECT_TRUE(small.Push("z", 40));
  EXPECT_EQ(small.num_dropped(), 2);
  Any taken;
  small.Take(10, &taken);
  EXPECT_EQ(taken, (Any{"x", "z"}));
  EXPECT_TRUE(small.Push("larger than the ring", 200));
}

}  // namespace
}  // namespace recsys
