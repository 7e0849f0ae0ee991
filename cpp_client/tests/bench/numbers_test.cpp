#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "bench/ids.h"
#include "bench/latencies.h"
#include "bench/measured.h"
#include "bench/mixes.h"
#include "recsys/error.h"

namespace recsys::bench {
namespace {

std::string TextOf(const std::function<void()>& wrong) {
  try {
    wrong();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

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

TEST(Latencies, PercentilesAreThoseOfTheValuesToTheBucketsWidth) {
  Latencies latencies;
  for (int i = 1; i <= 10'000; ++i) latencies.Add(i * 1e-5);
  EXPECT_NEAR(*latencies.QuantileMs(0.5), 50, 50 * 0.004);
  EXPECT_NEAR(*latencies.QuantileMs(0.99), 99, 99 * 0.004);
  EXPECT_NEAR(*latencies.QuantileMs(1), 100, 100 * 0.004);
  const Json figures = latencies.FiguresMs();
  EXPECT_NEAR(figures["max"].get<double>(), 100, 1e-5);
  EXPECT_NEAR(figures["mean"].get<double>(), 50.005, 1e-3);
  EXPECT_NEAR(latencies.ShareAbove(0.09), 0.1, 0.005);
}

TEST(Latencies, MergedAreAsIfCountedTogether) {
  Latencies all, first, second;
  for (int i = 0; i < 1000; ++i) {
    all.Add(i * 1e-4);
    (i % 3 == 0 ? first : second).Add(i * 1e-4);
  }
  first.Merge(second);
  EXPECT_EQ(first.Histogram(), all.Histogram());
  EXPECT_EQ(first.FiguresMs(), all.FiguresMs());
}

TEST(Latencies, NothingHasNoFigures) {
  EXPECT_FALSE(Latencies().QuantileMs(0.5));
  EXPECT_TRUE(Latencies().FiguresMs()["p99"].is_null());
  EXPECT_EQ(Latencies().ShareAbove(0), 0);
}

TEST(Latencies, WhatABrokenClockSaysIsCountedAllTheSame) {
  Latencies latencies;
  latencies.Add(-1);
  latencies.Add(1e300);
  EXPECT_EQ(latencies.count(), 2);
  EXPECT_EQ(latencies.FiguresMs()["p50"], 0);
}

TEST(Mix, ReadsWhatRecsysBenchReads) {
  EXPECT_EQ(ParseMix("8").text(), "8");
  EXPECT_EQ(ParseMix("1-20").text(), "1-20");
  EXPECT_EQ(ParseMix("1:0.9, 50:0.1").text(), "1:0.9,50:0.1");
  EXPECT_EQ(TextOf([] { ParseMix("x"); }),
            "got 'x', expected a whole number from 0 to 1000000000, or a range such as 1-20");
  for (const char* wrong :
       {"", "-1", "5-3", "1.5", "1,2", "1:0,2:1", "1:x", "1:inf,2:1", "1-", "9999999999"}) {
    EXPECT_NE(TextOf([&] { ParseMix(wrong); }), "nothing was thrown") << wrong;
  }
}

TEST(Mix, DrawsEachChoiceByItsWeight) {
  const Mix mix = ParseMix("1:0.9,50-51:0.1");
  Generator generator(1);
  std::map<std::int64_t, int> counts;
  for (int i = 0; i < 20'000; ++i) ++counts[mix.Draw(generator)];
  EXPECT_EQ(counts.size(), 3U);
  EXPECT_NEAR(counts[1], 18'000, 300);
  EXPECT_NEAR(counts[50], 1'000, 200);
}

TEST(IdDraw, FollowsZipfsLaw) {
  constexpr int kDraws = 200'000, kRows = 100;
  for (const double exponent : {0.7, 1.0, 1.4}) {
    const IdDraw ids(kRows, exponent);
    Generator generator(2);
    std::vector<int> counts(kRows);
    for (int i = 0; i < kDraws; ++i) ++counts.at(static_cast<std::size_t>(ids.Draw(generator)));
    std::sort(counts.rbegin(), counts.rend());
    double sum = 0;
    for (int rank = 1; rank <= kRows; ++rank) sum += std::pow(rank, -exponent);
    for (const int rank : {1, 2, 10, 50}) {
      const double expected = kDraws * std::pow(rank, -exponent) / sum;
      EXPECT_NEAR(counts[static_cast<std::size_t>(rank) - 1], expected,
                  6 * std::sqrt(expected) + 0.02 * expected)
          << exponent << " " << rank;
    }
  }
}

TEST(IdDraw, HotRowsLieWhereRecsysBenchPutsThem) {
  // Rank k is the ID (k - 1) * 61 mod 100: 61 is the first from 0.618 * 100 on without a common
  // factor.
  const IdDraw ids(100, 1.2);
  Generator generator(3);
  std::vector<int> counts(100);
  for (int i = 0; i < 100'000; ++i) ++counts[static_cast<std::size_t>(ids.Draw(generator))];
  EXPECT_GT(counts[0], counts[61]);
  EXPECT_GT(counts[61], counts[22]);
  EXPECT_GT(counts[22], counts[1]);
}

TEST(IdDraw, StaysWithinTheTable) {
  for (const double exponent : {0.0, 0.01, 1.0, 50.0}) {
    for (const std::int64_t rows : {1, 2, 7, 1'000'000'007}) {
      const IdDraw ids(rows, exponent);
      Generator generator(4);
      for (int i = 0; i < 1000; ++i) {
        const std::int64_t id = ids.Draw(generator);
        ASSERT_TRUE(0 <= id && id < rows) << exponent << " " << rows << " " << id;
      }
    }
  }
}

TEST(Recorder, AnOpenLoopCountsFromWhenRequestsWereDue) {
  Recorder recorder({10, 20, true, 0});
  recorder.Answered({10.5, 10.7, 11.0}, 0, 3);
  recorder.Answered({9.9, 10.1, 10.2}, 0, 3);   // due before
  recorder.Answered({19.9, 19.9, 25.0}, 0, 3);  // due within, answered after
  const Measured& measured = recorder.measured();
  EXPECT_EQ(measured.num_answered(), 2);
  EXPECT_EQ(measured.num_in_time, 1);
  EXPECT_EQ(measured.num_rows, 3);
  EXPECT_NEAR(*measured.latencies.QuantileMs(0.5), 500, 2);
  EXPECT_NEAR(*measured.services.QuantileMs(0.5), 300, 2);
  EXPECT_NEAR(*measured.lags.QuantileMs(1), 200, 1);
}

TEST(Recorder, AClosedLoopCountsWhatEndsInTime) {
  Recorder recorder({10, 20, false, 2});
  recorder.Answered({9, 9, 11}, 1, 1);
  recorder.Answered({19, 19, 21}, 1, 1);
  recorder.Failed({12, 12, 13}, 0, "UNAVAILABLE", std::string(1000, 'x'));
  const Measured& measured = recorder.measured();
  EXPECT_EQ(measured.num_answered(), 1);
  EXPECT_EQ(measured.lags.count(), 0);
  EXPECT_EQ(measured.num_failed(), 1);
  EXPECT_EQ(measured.texts.at("UNAVAILABLE").size(), 300U);
  EXPECT_EQ(measured.kinds[0].num_failed, 1);
  EXPECT_EQ(measured.kinds[1].latencies.count(), 1);
}

TEST(Series, DoublesItsIntervalsWhereTheyWouldBeTooMany) {
  Series series;
  for (int second = 0; second < 1000; ++second) series.Add(second + 0.5, 0.001);
  series.Add(999.5, -1);
  const Json points = series.Points(1000);
  EXPECT_EQ(points.size(), 125U);
  EXPECT_EQ(points[0]["width_s"], 8);
  EXPECT_EQ(points[0]["requests_per_s"], 1);
  EXPECT_EQ(points[124]["failed_per_s"], 0.125);
}

}  // namespace
}  // namespace recsys::bench
