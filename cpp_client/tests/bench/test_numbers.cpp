#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "bench/latencies.h"
#include "bench/measured.h"

namespace recsys::bench {
namespace {

TEST(Latencies, BucketsFollowOneAnotherWithoutGaps) {
  std::int64_t end = 0;
  for (std::size_t bucket = 0; bucket < 4000; ++bucket) {
    const auto [least, next] = BucketBounds(bucket);
    ASSERT_EQ(least, end) << bucket;
    ASSERT_EQ(BucketOf(least), bucket);
    ASSERT_EQ(BucketOf(next - 1), bucket);
    ASSERT_LE(next - least, std::max<std::int64_t>(1, least / 128)) << bucket;
    end = next;
  }
}

TEST(Latencies, CountsEachDurationInItsBucket) {
  Latencies latencies;
  for (int i = 1; i <= 10'000; ++i) latencies.Add(i * 1e-5);
  const auto& counts = latencies.counts();
  EXPECT_EQ(latencies.count(), 10'000);
  EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}), 10'000);
  EXPECT_NEAR(static_cast<double>(latencies.max_ns()), 1e8, 1);
  EXPECT_NEAR(static_cast<double>(latencies.sum_ns()), 50.005e6 * 10'000, 1e4);
  const auto middle = static_cast<std::ptrdiff_t>(BucketOf(50'000'000));
  const std::int64_t below =
      std::accumulate(counts.begin(), counts.begin() + middle, std::int64_t{0});
  EXPECT_NEAR(static_cast<double>(below), 5'000, 40);
}

TEST(Latencies, MergedAreAsIfCountedTogether) {
  Latencies all, first, second;
  for (int i = 0; i < 1000; ++i) {
    all.Add(i * 1e-4);
    (i % 3 == 0 ? first : second).Add(i * 1e-4);
  }
  first.Merge(second);
  EXPECT_EQ(first.counts(), all.counts());
  EXPECT_EQ(first.sum_ns(), all.sum_ns());
  EXPECT_EQ(first.max_ns(), all.max_ns());
}

TEST(Latencies, DurationsOfABrokenClockAreBounded) {
  Latencies latencies;
  latencies.Add(-1);
  latencies.Add(1e300);
  EXPECT_EQ(latencies.count(), 2);
  EXPECT_EQ(latencies.counts()[0], 1);
  EXPECT_EQ(latencies.max_ns(), 1'000'000'000'000'000);
}

TEST(Recorder, AnOpenLoopCountsFromWhenRequestsWereDue) {
  Recorder recorder({10, 20, true, 0});
  recorder.Answered({10.5, 10.7, 11.0}, 0, 3);
  recorder.Answered({9.9, 10.1, 10.2}, 0, 3);   // due before
  recorder.Answered({19.9, 19.9, 25.0}, 0, 3);  // due within, answered after
  recorder.Failed({12, 12, 12}, 0, kNotSent, "full");
  const Measured& measured = recorder.measured();
  EXPECT_EQ(measured.latencies.count(), 2);
  EXPECT_EQ(measured.num_in_time, 1);
  EXPECT_EQ(measured.num_rows, 3);
  EXPECT_NEAR(static_cast<double>(measured.latencies.sum_ns()), 5.6e9, 10);
  EXPECT_NEAR(static_cast<double>(measured.services.sum_ns()), 5.4e9, 10);
  EXPECT_EQ(measured.lags.count(), 2) << "without the one that was not sent";
  EXPECT_NEAR(static_cast<double>(measured.lags.max_ns()), 0.2e9, 10);
}

TEST(Recorder, AClosedLoopCountsWhatEndsInTime) {
  Recorder recorder({10, 20, false, 2});
  recorder.Answered({9, 9, 11}, 1, 1);
  recorder.Answered({19, 19, 21}, 1, 1);
  recorder.Failed({12, 12, 13}, 0, 14, std::string(1000, 'x'));
  recorder.Failed({12, 12, 13}, 0, 14, "second");
  const Measured& measured = recorder.measured();
  EXPECT_EQ(measured.latencies.count(), 1);
  EXPECT_EQ(measured.lags.count(), 0);
  EXPECT_EQ(measured.errors.at(14).count, 2);
  EXPECT_EQ(measured.errors.at(14).text, std::string(300, 'x'));
  EXPECT_EQ(measured.kinds[0].num_failed, 2);
  EXPECT_EQ(measured.kinds[1].latencies.count(), 1);
}

TEST(Measured, AddsUpThreads) {
  Recorder first({0, 10, false, 1}), second({0, 10, false, 1});
  first.Answered({1, 1, 2}, 0, 1);
  second.Answered({1, 1, 3}, 0, 2);
  second.Failed({1, 1, 3}, 0, 4, "late");
  Measured sum = first.measured();
  sum.cpu_shares = {0.25};
  Measured other = second.measured();
  other.cpu_shares = {0.5};
  sum.Merge(other);
  EXPECT_EQ(sum.num_in_time, 2);
  EXPECT_EQ(sum.num_rows, 3);
  EXPECT_EQ(sum.errors.at(4).text, "late");
  EXPECT_EQ(sum.kinds[0].latencies.count(), 2);
  EXPECT_EQ(sum.cpu_shares, (std::vector<double>{0.25, 0.5}));
}

TEST(Series, DoublesItsIntervalsWhereTheyWouldBeTooMany) {
  Series series;
  for (int second = 0; second < 1000; ++second) series.Add(second + 0.5, 0.001);
  series.Add(999.5, -1);
  EXPECT_EQ(series.width_s(), 8);
  ASSERT_EQ(series.intervals().size(), 125U);
  EXPECT_EQ(series.intervals()[0].latencies.count(), 8);
  EXPECT_EQ(series.intervals()[124].num_failed, 1);
}

}  // namespace
}  // namespace recsys::bench
