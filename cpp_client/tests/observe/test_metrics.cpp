#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <thread>

#include "server/observe/metrics.h"
#include "server/observe/metrics_page.h"
#include "server/observe/snapshot.h"

namespace recsys {
namespace {

std::string ReadData(const std::string& name) {
  std::ifstream file(std::string(RECSYS_TEST_DATA) + "/observe/" + name);
  EXPECT_TRUE(file) << name;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// What tests/native/test_metrics_page.py gives Python's metrics.
void Fill(Metrics& metrics) {
  metrics.Unrouted("not_found");
  metrics.Unrouted("invalid");
  const auto first = metrics.Begin("dlrm \"\\\n", "1");
  first->Answered(0.0015);
  first->Answered(12.5);
  first->Answered(5e-5);
  first->Count("rejected");
  first->Accepted();
  first->Accepted();
  first->ObserveStages({1e-6, 0.25}, 0.001, 0.0035, 1e-7);
  first->Observe(Stage::kQueue, 100.0);
  first->ObserveBatch(2, 300, 123'456'789);
  first->ObserveBatch(1, 8192, 16);
  first->SetPending(3, 1'234'567, 10'000'000'000);
  first->SetTableBytes({{"items", 123'456'789'012}, {"users", 4096}});
  HostedDescription description;
  description.target = "cpu";
  description.digest = "0123456789ab";
  description.num_executors = 2;
  first->Describe(description);
  first->CountShadow(ShadowResult::kSame);
  first->CountShadow(ShadowResult::kDropped);
  first->DeltaApplied();
  first->DeltaFailed();
  metrics.Begin("plain", "2");
  metrics.SetState("plain", "2", "loading");
  metrics.SetState("dlrm", "1", "failed");
  metrics.SetState("plain", "2", "ready");
  metrics.SetState("gone", "1", "ready");
  metrics.SetState("gone", "1", "available");
  metrics.Watch("capture", [] {
    return std::map<std::string, std::int64_t>{{"written", 7}, {"dropped", 1'000'000}};
  });
  metrics.Watch("log", [] { return std::map<std::string, std::int64_t>{{"dropped", 3}}; });
}

std::string WithoutProcess(const std::string& page) {
  return page.substr(0, page.find("# HELP process_"));
}

TEST(MetricsPage, IsWhatPythonsServerShowsForTheSameNumbers) {
  Metrics metrics;
  Fill(metrics);
  EXPECT_EQ(WithoutProcess(metrics.Page()), ReadData("page.txt"));
}

TEST(MetricsPage, IsPythonsOpenMetricsTooForThoseWhoAsk) {
  Metrics metrics;
  Fill(metrics);
  const std::string page = metrics.Page(true);
  EXPECT_EQ(WithoutProcess(page), ReadData("page_open_metrics.txt"));
  EXPECT_EQ(page.substr(page.size() - 6), "# EOF\n");
}

TEST(MetricsPage, TellsOfTheProcess) {
  PageNumbers numbers;
  numbers.process.stat = ProcessNumbers::Stat{54018048, 38133760, 1795296222.52, 0.25};
  numbers.process.files = ProcessNumbers::Files{7, 20000};
  const std::string page = MakeMetricsPage(numbers, false);
  EXPECT_NE(page.find("# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total 0.25\n"),
            page.npos);
  EXPECT_NE(page.find("process_virtual_memory_bytes 5.4018048e+07\n"), page.npos);
  EXPECT_NE(page.find("process_start_time_seconds 1.79529622252e+09\n"), page.npos);
  EXPECT_NE(page.find("process_max_fds 20000.0\n"), page.npos);
}

TEST(MetricsPage, LeavesOutTheProcessWhereNobodyTells) {
  EXPECT_EQ(MakeMetricsPage(PageNumbers(), false).find("process_"), std::string::npos);
}

TEST(ProcessNumbers, AreThoseOfThisProcess) {
  const ProcessNumbers numbers = ReadProcessNumbers();
  ASSERT_TRUE(numbers.stat);
  ASSERT_TRUE(numbers.files);
  EXPECT_GT(numbers.stat->resident_memory_bytes, 100'000);
  EXPECT_GE(numbers.stat->virtual_memory_bytes, numbers.stat->resident_memory_bytes);
  EXPECT_GT(numbers.stat->start_time_s, 1.5e9);
  EXPECT_GE(numbers.files->num_open, 3);
  EXPECT_GT(numbers.files->max_open, numbers.files->num_open);
}

TEST(Metrics, OfADroppedVersionStillCountItsRequestsAmongAll) {
  Metrics metrics;
  const auto model = metrics.Begin("a", "1");
  model->Accepted();
  model->Answered(1.0);
  metrics.Drop(model);
  // One that was accepted before is answered afterwards.
  model->Count("failed");
  model->Accepted();
  EXPECT_TRUE(metrics.Snapshots().empty());
  const auto outcomes = metrics.Outcomes();
  EXPECT_EQ(outcomes.at("ok"), 1);
  EXPECT_EQ(outcomes.at("failed"), 1);
  EXPECT_EQ(outcomes.at("accepted"), 2);
}

TEST(Metrics, OfAVersionThatBeginsAnewAreZeroAndSurviveTheOldOnesDrop) {
  Metrics metrics;
  const auto old = metrics.Begin("a", "1");
  old->Answered(1.0);
  const auto made = metrics.Begin("a", "1");
  ASSERT_EQ(metrics.Snapshots().size(), 1U);
  EXPECT_EQ(metrics.Snapshots()[0].num_ok(), 0);
  metrics.Drop(old);
  made->Answered(1.0);
  old->Answered(1.0);
  ASSERT_EQ(metrics.Snapshots().size(), 1U);
  EXPECT_EQ(metrics.Snapshots()[0].num_ok(), 1);
  EXPECT_EQ(metrics.Outcomes().at("ok"), 3);
}

TEST(Metrics, AreRightWhenManyThreadsCountAtOnce) {
  Metrics metrics;
  const auto model = metrics.Begin("a", "1");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&model] {
      for (int j = 0; j < 1000; ++j) {
        model->Accepted();
        model->Answered(0.5);
      }
    });
  }
  for (int i = 0; i < 100; ++i) {
    const auto snapshot = metrics.Snapshots()[0];
    EXPECT_EQ(snapshot.num_ok(), snapshot.request.count());
  }
  metrics.Drop(model);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(metrics.Outcomes().at("ok"), 4000);
  EXPECT_EQ(metrics.Outcomes().at("accepted"), 4000);
}

TEST(Metrics, SnapshotSumsWhatStatisticsNeed) {
  Metrics metrics;
  const auto model = metrics.Begin("a", "1");
  model->Count("expired");
  model->Count("invalid");
  model->SetTableBytes({{"x", 2}, {"y", 40}});
  model->Observe(Stage::kExecute, 0.5);
  const auto snapshot = metrics.Snapshots()[0];
  EXPECT_EQ(snapshot.num_failed(), 2);
  EXPECT_EQ(snapshot.all_table_bytes(), 42);
  EXPECT_EQ(snapshot.stage(Stage::kExecute).sum(), 0.5);
  EXPECT_EQ(snapshot.last_batch_s, 0.0);
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

}  // namespace
}  // namespace recsys
