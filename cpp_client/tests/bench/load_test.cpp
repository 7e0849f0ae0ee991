// The whole tool against a server in the same process.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "bench/report.h"
#include "bench/run.h"
#include "tests/client/fake_server.h"

namespace recsys::bench {
namespace {

void Describe(v1::ModelMetadata* metadata) {
  metadata->set_model("fake");
  metadata->set_version("1");
  auto* price = metadata->add_dense();
  price->set_name("price");
  price->set_width(2);
  for (const char* name : {"user", "item"}) {
    auto* sparse = metadata->add_sparse();
    sparse->set_name(name);
    sparse->set_weighted(name == std::string("item"));
    if (name == std::string("user")) sparse->set_id_limit(5);
    sparse->add_tables()->set_num_embeddings(9);
  }
  metadata->add_context("user");
}

class LoadTest : public testing::Test {
 protected:
  LoadTest() { Describe(&server_.service.metadata); }

  Result RunWith(std::vector<std::string> words) {
    words.insert(words.begin(), server_.address());
    for (const char* word : {"--duration-s", "0.3", "--warm-up-s", "0.05", "--distinct", "50"}) {
      words.emplace_back(word);
    }
    return bench::Run(*ReadSettings(words), [](const std::string&, double) {
      return [](double, std::int64_t, std::int64_t) {};
    });
  }

  FakeServer server_;
};

TEST_F(LoadTest, AClosedLoopKeepsSoManyRequestsUnanswered) {
  std::atomic<int> num_open{0}, most_open{0};
  server_.service.on_predict = [&](auto*, const auto& request, auto* response) {
    const int open = ++num_open;
    for (int most = most_open; open > most && !most_open.compare_exchange_weak(most, open);) {
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    --num_open;
    return FakeService::Score(request, response);
  };
  const Result result = RunWith({"--in-flight", "6", "--threads", "2"});
  EXPECT_EQ(most_open, 6);
  EXPECT_EQ(result.ExitCode(), 0);
  EXPECT_GT(result.measurement->measured.num_answered(), 20);
  EXPECT_GE(*result.measurement->measured.latencies.QuantileMs(0.5), 2.0);
  const auto peers = server_.service.peers();
  EXPECT_EQ(std::set<std::string>(peers.begin(), peers.end()).size(), 4U);
}

TEST_F(LoadTest, AnOpenLoopSendsWhateverBecomesOfEarlierRequests) {
  // The server stands still for the first 200 ms: what is due meanwhile waits, and that is counted.
  const double opens_s = MonotonicSeconds() + 0.25;
  server_.service.on_predict = [&](auto*, const auto& request, auto* response) {
    const double wait_s = opens_s - MonotonicSeconds();
    if (wait_s > 0) std::this_thread::sleep_for(std::chrono::duration<double>(wait_s));
    return FakeService::Score(request, response);
  };
  const Result result = RunWith({"--rate", "200"});
  const Measured& measured = result.measurement->measured;
  EXPECT_GT(measured.num_answered(), 20);
  EXPECT_GT(*measured.latencies.QuantileMs(0.9), 50) << "requests waited for the server";
  EXPECT_LT(*measured.lags.QuantileMs(0.5), 20) << "and were sent all the same";
}

TEST_F(LoadTest, WhatIsDueBeyondMaxInFlightFailsUnsent) {
  server_.service.on_predict = [&](auto*, const auto& request, auto* response) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    return FakeService::Score(request, response);
  };
  const Result result = RunWith({"--rate", "500", "--max-in-flight", "4"});
  const auto& errors = result.measurement->measured.errors;
  EXPECT_GT(errors.at("NOT_SENT"), 50);
  EXPECT_EQ(result.measurement->measured.texts.at("NOT_SENT"),
            "4 earlier requests were unanswered");
  EXPECT_EQ(result.ExitCode(), 1);
}

TEST_F(LoadTest, FailedRequestsAreCountedByTheirCodes) {
  std::atomic<int> count{0};
  server_.service.on_predict = [&](auto*, const auto& request, auto* response) {
    if (count++ % 2 == 0) return FakeService::Score(request, response);
    return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "the queue is full");
  };
  const Result result = RunWith({"--in-flight", "4"});
  const Json made = result.ToJson()["measurement"];
  EXPECT_GT(made["errors"]["RESOURCE_EXHAUSTED"].get<int>(), 0);
  EXPECT_EQ(made["error_texts"]["RESOURCE_EXHAUSTED"], "the queue is full");
  EXPECT_EQ(made["num_failed"], made["errors"]["RESOURCE_EXHAUSTED"]);
  EXPECT_EQ(result.ExitCode(), 1);
  EXPECT_NE(Report(result).find("the queue is full"), std::string::npos);
}

TEST_F(LoadTest, RequestsAreWhatTheMetadataAskFor) {
  RunWith({"--in-flight", "2", "--connections", "1", "--rows", "3-4", "--ids-per-bag", "item=2",
           "--zipf", "1"});
  const auto requests = server_.service.requests();
  ASSERT_FALSE(requests.empty());
  std::set<std::string> distinct;
  for (const v1::PredictRequest& request : requests) {
    distinct.insert(request.SerializeAsString());
    const auto rows = static_cast<std::size_t>(request.num_rows());
    ASSERT_TRUE(rows == 3 || rows == 4);
    ASSERT_EQ(request.dense(0).values().size(), 4 * 2 * rows);
    ASSERT_EQ(request.sparse(0).values().size(), 8 * rows);
    ASSERT_EQ(request.sparse(0).weights().size(), 0U);
    ASSERT_EQ(request.sparse(1).values().size(), 8 * 2 * rows);
    ASSERT_EQ(request.sparse(1).weights().size(), 4 * 2 * rows);
    for (const char byte : request.sparse(0).values()) ASSERT_LT(byte, 5);
  }
  EXPECT_GT(distinct.size(), 20U);
}

TEST_F(LoadTest, RankingRequestsGiveTheContextOnce) {
  RunWith({"--in-flight", "1", "--connections", "1", "--candidates", "7"});
  const auto requests = server_.service.requests();
  ASSERT_FALSE(requests.empty());
  for (const v1::PredictRequest& request : requests) {
    ASSERT_EQ(request.num_rows(), 7);
    ASSERT_EQ(request.context_sparse_size(), 1);
    ASSERT_EQ(request.context_sparse(0).lengths().size(), 4U);
    ASSERT_EQ(request.sparse_size(), 1);
    ASSERT_EQ(request.sparse(0).lengths().size(), 28U);
  }
}

TEST_F(LoadTest, WhatTheModelHasNotIsBadUsage) {
  const auto text_of = [&](const std::vector<std::string>& words) -> std::string {
    try {
      RunWith(words);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kConfig);
      return error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_NE(text_of({"--ids-per-bag", "genre=3"}).find("--ids-per-bag: got 'genre'"),
            std::string::npos);
  server_.service.metadata.clear_context();
  EXPECT_EQ(text_of({"--candidates", "5"}),
            "--candidates: the model was exported without a context; --rows sends whole rows");
}

TEST_F(LoadTest, MeaninglessBytesNeedNoModel) {
  // No protobuf message: the server says so, which shows that the bytes were sent as they are.
  const Result result =
      RunWith({"--payload-bytes", "100", "--in-flight", "1", "--connections", "1"});
  EXPECT_EQ(result.measurement->measured.num_answered(), 0);
  EXPECT_GT(result.measurement->measured.num_failed(), 0);
}

TEST_F(LoadTest, TheResultHasRecsysBenchsFields) {
  const Result result = RunWith({"--rate", "300", "--rows", "1:0.5,2:0.5"});
  const Json json = result.ToJson();
  for (const char* key :
       {"started_at", "settings", "tool", "machine", "server", "measurement", "server_metrics"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  const Json& made = json["measurement"];
  for (const char* key : {"asked_per_s",          "num_in_flight", "duration_s", "requests_per_s",
                          "rows_per_s",           "num_answered",  "num_failed", "errors",
                          "error_texts",          "latency_ms",    "service_ms", "lag_ms",
                          "late_share",           "late_ms",       "is_valid",   "warnings",
                          "generator_cpu_shares", "kinds",         "series",     "histogram"}) {
    EXPECT_TRUE(made.contains(key)) << key;
  }
  EXPECT_EQ(made["kinds"].size(), 2U);
  EXPECT_EQ(made["kinds"]["1 row"]["num_answered"].get<int>() +
                made["kinds"]["2 rows"]["num_answered"].get<int>(),
            made["num_answered"].get<int>());
  EXPECT_EQ(json["server"]["model"], "fake");
  EXPECT_EQ(json["settings"]["num_distinct"], 50);
}

TEST_F(LoadTest, ASearchEndsWithARateAndItsSteps) {
  // Beyond some rate the only thread of the model is too slow.
  std::mutex model;
  server_.service.on_predict = [&](auto*, const auto& request, auto* response) {
    const std::lock_guard<std::mutex> lock(model);
    std::this_thread::sleep_for(std::chrono::microseconds(500));
    return FakeService::Score(request, response);
  };
  const Result result = RunWith({"--find-rate", "--p99-ms", "40", "--start-rate", "4000",
                                 "--precision", "1", "--max-in-flight", "100"});
  ASSERT_TRUE(result.found);
  const Json json = result.ToJson();
  EXPECT_EQ(json["steps"].size(), result.steps.size());
  EXPECT_NE(json["steps"][0]["verdict"], "ok") << "4000/s is more than 2000/s";
  EXPECT_NE(Report(result).find("steps"), std::string::npos);
}

TEST(Figures, TooManyLateRequestsMakeTheNumbersInvalid) {
  Recorder recorder({0, 10, true, 0});
  for (int i = 0; i < 100; ++i) {
    const double lag_s = i < 2 ? 0.005 : 0.0001;
    recorder.Answered({1, 1 + lag_s, 1 + lag_s + 0.001}, 0, 1);
  }
  Step step;
  step.duration_s = 10;
  step.rate_per_s = 10;
  const Figures made = FiguresOf(recorder.measured(), step, {0.5, 1}, {});
  EXPECT_FALSE(made.is_valid);
  EXPECT_NEAR(made.late_share, 0.02, 1e-9);
  EXPECT_EQ(
      made.late_text().rfind("not valid: 2.0% of the requests were sent more than 1 ms late", 0),
      0U);
  EXPECT_EQ(VerdictOf(made, 1), Verdict::kLate);
  Result result;
  result.measurement = made;
  result.server = {{"model", "m"}, {"version", "1"}, {"target", "cpu"}};
  EXPECT_EQ(result.ExitCode(), 3);
  EXPECT_NE(Report(result).find("NOT VALID"), std::string::npos);
}

TEST(Figures, ABusyClientIsNamed) {
  Step step;
  step.duration_s = 1;
  EXPECT_EQ(FiguresOf({}, step, {0.95, 1}, {}).warnings.size(), 1U);
  EXPECT_EQ(FiguresOf({}, step, {0.95, 2}, {}).warnings.size(), 0U);
}

TEST(Run, WithoutAServerThereIsOneClearError) {
  std::string address;
  {
    FakeServer server;
    address = server.address();
  }
  try {
    bench::Run(*ReadSettings({address}), {});
    FAIL() << "nothing was thrown";
  } catch (const ClientError& error) {
    EXPECT_EQ(error.code(), StatusCode::kUnavailable);
  }
}

}  // namespace
}  // namespace recsys::bench
