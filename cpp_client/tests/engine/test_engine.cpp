// The engine through its facade: a fake model behind the real port.

#include <gtest/gtest.h>
#include <poll.h>

#include <cstring>
#include <future>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "format/json/json.h"
#include "recsys/error.h"
#include "tests/core/fakes.h"
#include "tests/port/grpc/echo.h"
#include "tests/port/threads.h"
#include "tests/wire/messages.h"
#include "wire/predict_messages.h"

namespace recsys {
namespace {

constexpr char kPredict[] = "/recsys.v1.PredictionService/Predict";
constexpr char kMetadata[] = "/recsys.v1.PredictionService/GetModelMetadata";
constexpr char kReflect[] = "/test.Reflection/Info";

/// A serialized PredictRequest of one row whose score is `id`.
std::string RequestOf(std::int64_t id, const std::string& version = "",
                      const std::string& request_id = "") {
  static const std::string zero = Floats({0}), one = Int32({1});
  const std::string ids = Int64({id});
  RawRequest raw;
  raw.num_rows = 1;
  raw.dense = {{"d", zero}};
  raw.sparse = {{"id", one, ids, {}}};
  std::string message = WritePredictRequest(raw);
  if (!version.empty()) message += Field(8, version);
  if (!request_id.empty()) message += Field(2, request_id);
  return message;
}

/// Whether an answer is of this version and holds this score.
bool IsAnswer(const std::string& message, const std::string& version, float score) {
  return message.find(Field(3, version)) != message.npos &&
         message.find(Floats({score})) != message.npos;
}

class EngineTest : public testing::Test {
 protected:
  void Make(const EngineSettings& settings = {}) {
    engine_ = std::make_unique<Engine>(
        settings, [this](const std::string& path, const VersionSettings&) { return Opened(path); });
  }
  OpenedModel Opened(const std::string& path) {
    if (path == "missing") throw Error(ErrorKind::kArtifactNotFound, "missing: no such artifact");
    OpenedModel opened;
    auto model = std::make_unique<SumModel>();
    model->on_predict = [this](const Batch& batch) {
      if (on_predict_) on_predict_(batch);
    };
    last_model_ = model.get();
    opened.model = std::move(model);
    opened.info.target = "fake";
    opened.info.digest = path;
    return opened;
  }
  std::shared_ptr<Version> Open(const std::string& version, VersionSettings settings = {}) {
    settings.name = "sum";
    settings.version = version;
    auto opened = engine_->Open("artifact " + version, settings);
    return opened;
  }
  RouteSpec Serving(const std::string& version) {
    RouteSpec spec;
    spec.model = "sum";
    spec.serving = version;
    spec.is_only = true;
    return spec;
  }
  void Listen() {
    PortSettings settings;
    settings.num_threads = TestThreads();
    port_ = engine_->Listen(settings, {kMetadata}, {kReflect}, std::nullopt, RestlessBalance());
    channel_ = ChannelTo(port_);
  }
  std::string Ask(const std::string& message) {
    return ClientCall(channel_, kPredict, message).Text();
  }

  /// Waits for an event of this kind; keeps the others.
  template <typename Kind>
  Kind Next() {
    const double until_s = MonotonicSeconds() + kPatienceS;
    while (MonotonicSeconds() < until_s) {
      for (auto at = events_.begin(); at != events_.end(); ++at) {
        if (!std::holds_alternative<Kind>(*at)) continue;
        Kind found = std::get<Kind>(std::move(*at));
        events_.erase(at);
        return found;
      }
      pollfd file{engine_->event_fd(), POLLIN, 0};
      poll(&file, 1, 100);
      for (Event& event : engine_->Take(3)) events_.push_back(std::move(event));
    }
    ADD_FAILURE() << "no such event came";
    return {};
  }

  std::function<void(const Batch&)> on_predict_;
  SumModel* last_model_ = nullptr;
  std::unique_ptr<Engine> engine_;
  std::vector<Event> events_;
  int port_ = 0;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(EngineTest, AnswersAsTheRoutesSayAndCounts) {
  Make();
  const auto first = Open("1"), second = Open("2");
  Listen();
  EXPECT_EQ(ClientCall(channel_, kPredict, RequestOf(1)).Wait().error_code(),
            grpc::StatusCode::UNAVAILABLE);
  engine_->Publish(Serving("1"), {first, second});
  EXPECT_TRUE(IsAnswer(Ask(RequestOf(7)), "1", 7));
  EXPECT_TRUE(IsAnswer(Ask(RequestOf(8, "2")), "2", 8));
  engine_->Publish(Serving("2"), {second});
  first->Close();
  EXPECT_TRUE(IsAnswer(Ask(RequestOf(9)), "2", 9));
  EXPECT_EQ(ClientCall(channel_, kPredict, RequestOf(1, "1")).Wait().error_code(),
            grpc::StatusCode::NOT_FOUND);
  engine_->Withdraw("sum");
  EXPECT_EQ(ClientCall(channel_, kPredict, RequestOf(1)).Wait().error_code(),
            grpc::StatusCode::NOT_FOUND);
  // A request counts as active until its answer was handed over.
  EXPECT_TRUE(engine_->WaitUntilIdle(kPatienceS));
  const Json totals = ParseJson(second->Totals()), counts = ParseJson(engine_->Counts());
  EXPECT_EQ(totals["outcomes"]["ok"], 2);
  EXPECT_EQ(totals["accepted"], 2);
  EXPECT_EQ(ParseJson(first->Totals())["outcomes"]["ok"], 1);
  EXPECT_EQ(counts["unrouted"]["not_found"], 2);
  EXPECT_EQ(counts["unrouted"]["unavailable"], 1);
  EXPECT_EQ(counts["active"], 0);
  EXPECT_EQ(counts["port"]["accepted"], 1);
  EXPECT_EQ(counts["port"]["refused"], 0);
}

TEST_F(EngineTest, DescribesAVersionAndAppliesDeltas) {
  Make();
  const auto version = Open("3");
  const Json description = ParseJson(version->Description());
  EXPECT_EQ(description["name"], "sum");
  EXPECT_EQ(description["version"], "3");
  EXPECT_EQ(description["target"], "fake");
  EXPECT_EQ(description["digest"], "artifact 3");
  EXPECT_EQ(description["signature"]["dense"][0]["name"], "d");
  EXPECT_EQ(version->ApplyDelta("a.delta"), 3);
  EXPECT_EQ(ParseJson(version->Totals())["deltas_applied"], 1);
  version->Close();
  version->Close();
  EXPECT_THROW(version->ApplyDelta("a.delta"), Error);
}

TEST_F(EngineTest, TellsWhatTheContextCacheDidAndHoldsNothingOfItOnceClosed) {
  Make();
  const auto version = Open("1");
  // What the warm-up has counted is not of requests.
  EXPECT_EQ(ParseJson(version->Totals())["context_cache"]["hits"], 0);
  last_model_->num_counted = 6;
  version->Close();
  EXPECT_EQ(ParseJson(version->Totals())["context_cache"], (Json{{"hits", 6},
                                                                 {"misses", 2},
                                                                 {"evictions", 3},
                                                                 {"entries", 0},
                                                                 {"bytes", 0},
                                                                 {"grown", 0}}));
}

TEST_F(EngineTest, WhatCannotBeOpenedIsAnError) {
  Make();
  try {
    engine_->Open("missing", {});
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kArtifactNotFound);
  }
  on_predict_ = [](const Batch&) { throw std::runtime_error("no warmth"); };
  EXPECT_THROW(Open("1"), Error);
  VersionSettings settings;
  settings.num_executors = 0;
  EXPECT_THROW(Open("1", settings), Error);
}

TEST_F(EngineTest, CapturedRequestsWarmAVersionUp) {
  Make();
  std::mutex mutex;
  std::multiset<std::int64_t> sizes;
  on_predict_ = [&](const Batch& batch) {
    const std::lock_guard<std::mutex> lock(mutex);
    sizes.insert(batch.num_rows);
  };
  VersionSettings settings;
  engine_->Open("a", settings, std::vector<std::string>(11, RequestOf(1)));
  EXPECT_EQ(sizes.count(10), 0U);
  // Batches of 1, 8 and the last 2, beside the made ones.
  EXPECT_EQ(sizes.count(8), 3U);
}

TEST_F(EngineTest, TakesRequestsOfOtherDoors) {
  EngineSettings settings;
  settings.ended = "all";
  Make(settings);
  const auto version = Open("1");
  engine_->Publish(Serving("1"), {version});
  SubmitOptions options;
  options.protocol = "ray";
  options.headers["traceparent"] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  engine_->Submit(5, options, RequestOf(7, "", "mine"));
  const auto answer = Next<AnswerEvent>();
  EXPECT_EQ(answer.ticket, 5);
  EXPECT_TRUE(answer.status.ok()) << answer.status.text;
  EXPECT_TRUE(IsAnswer(answer.message, "1", 7));
  const auto ended = Next<EndedEvent>();
  EXPECT_EQ(ended.protocol, "ray");
  EXPECT_EQ(ended.trace_parent, options.headers.at("traceparent"));
  EXPECT_EQ(ended.model + ended.version + ended.request_id, "sum1mine");
  EXPECT_EQ(ended.outcome + ended.code, "okOK");
  EXPECT_EQ(ended.num_rows, 1);
  EXPECT_EQ(ended.num_ids, 1);
  ASSERT_TRUE(ended.times.has_value());
  EXPECT_LE(ended.started_s, ended.enqueued_s);
  EXPECT_LE(ended.enqueued_s, ended.times->taken_s);
  EXPECT_LE(ended.times->responded_s, ended.ended_s);
  EXPECT_TRUE(ended.is_logged);
  EXPECT_FALSE(ended.is_traced);
  engine_->Submit(6, options, "\xff");
  EXPECT_EQ(Next<AnswerEvent>().status.code, StatusCode::kInvalidArgument);
  options.form = "other";
  EXPECT_THROW(engine_->Submit(7, options, ""), Error);
}

TEST_F(EngineTest, ASubmittedRequestCanBeGivenUpAndHasADeadline) {
  Make();
  std::promise<void> inside, leave;
  const auto version = Open("1");
  engine_->Publish(Serving("1"), {version});
  last_model_->CloseGate();
  engine_->Submit(1, {}, RequestOf(1));
  last_model_->WaitUntilStarted(1);
  engine_->Submit(2, {}, RequestOf(2));
  EXPECT_THROW(engine_->Submit(2, {}, RequestOf(2)), Error);
  SubmitOptions late;
  late.remaining_s = 0;
  engine_->Submit(3, late, RequestOf(3));
  EXPECT_EQ(engine_->num_active(), 3);
  engine_->Cancel(2);
  engine_->Cancel(99);
  const auto cancelled = Next<AnswerEvent>();
  EXPECT_EQ(cancelled.ticket, 2);
  EXPECT_EQ(cancelled.status.code, StatusCode::kCancelled);
  last_model_->OpenGate();
  std::set<std::pair<std::int64_t, StatusCode>> ends;
  for (int i = 0; i < 2; ++i) {
    const auto answer = Next<AnswerEvent>();
    ends.emplace(answer.ticket, answer.status.code);
  }
  EXPECT_EQ(ends, (std::set<std::pair<std::int64_t, StatusCode>>{
                      {1, StatusCode::kOk}, {3, StatusCode::kDeadlineExceeded}}));
}

TEST_F(EngineTest, ForwardsTheCallsOfItsOwner) {
  Make();
  Listen();
  ClientCall call(channel_, kMetadata, "question", {{"authorization", "me"}});
  const auto asked = Next<CallEvent>();
  EXPECT_EQ(asked.method, kMetadata);
  EXPECT_EQ(asked.message, "question");
  EXPECT_TRUE(asked.is_last);
  EXPECT_TRUE(asked.deadline_s.has_value());
  EXPECT_EQ(asked.peer.rfind("ipv4:127.0.0.1:", 0), 0U);
  EXPECT_NE(std::find(asked.metadata.begin(), asked.metadata.end(),
                      std::pair<std::string, std::string>("authorization", "me")),
            asked.metadata.end());
  engine_->Answer(asked.id, "answer");
  EXPECT_EQ(call.Text(), "answer");
  ClientCall refused(channel_, kMetadata, "");
  engine_->Fail(Next<CallEvent>().id, {StatusCode::kPermissionDenied, "not here", 0});
  EXPECT_EQ(refused.Wait().error_message(), "not here");
  EXPECT_EQ(ClientCall(channel_, "/other.Service/Call", "").Wait().error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(EngineTest, RefusesMethodsThatItAnswersItselfAndWrongNames) {
  Make();
  for (const char* path : {kPredict, "Predict", "/", "/x/"}) {
    EXPECT_THROW(engine_->Listen({}, {path}, {}, std::nullopt), Error) << path;
  }
}

TEST_F(EngineTest, LeavesRecordsOfWhatItsOwnerWants) {
  EngineSettings settings;
  settings.ended = "errors";
  settings.trace_share = 0.0;
  settings.capture_share = 1.0;
  Make(settings);
  const auto version = Open("1");
  engine_->Publish(Serving("1"), {version});
  Listen();
  Ask(RequestOf(7));
  const auto captured = Next<CapturedEvent>();
  EXPECT_EQ(captured.model + captured.version, "sum1");
  EXPECT_EQ(captured.message, RequestOf(7));
  // Neither logged nor traced; the next ones are.
  ClientCall sampled(channel_, kPredict, RequestOf(8),
                     {{"traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}});
  EXPECT_TRUE(sampled.Wait().ok());
  const auto traced = Next<EndedEvent>();
  EXPECT_TRUE(traced.is_traced);
  EXPECT_FALSE(traced.is_logged);
  ClientCall(channel_, kPredict, RequestOf(8, "9")).Wait();
  const auto failed = Next<EndedEvent>();
  EXPECT_EQ(failed.code, "NOT_FOUND");
  EXPECT_EQ(failed.num_rows, 0);
  EXPECT_TRUE(failed.is_logged);
  EXPECT_FALSE(failed.is_traced);
}

TEST_F(EngineTest, AFullRingDropsAndCounts) {
  EngineSettings settings;
  settings.ended = "all";
  settings.ended_ring = {2, 1 << 20};
  Make(settings);
  const auto version = Open("1");
  engine_->Publish(Serving("1"), {version});
  for (int i = 0; i < 5; ++i) engine_->Submit(i, {}, RequestOf(i));
  for (const double until_s = MonotonicSeconds() + kPatienceS;
       engine_->num_active() > 0 && MonotonicSeconds() < until_s;) {
    std::this_thread::yield();
  }
  EXPECT_EQ(ParseJson(engine_->Counts())["dropped"]["ended"], 3);
  for (int i = 0; i < 5; ++i) Next<AnswerEvent>();
}

TEST_F(EngineTest, AShadowComputesAndBothOutputsAreRecorded) {
  Make();
  const auto first = Open("1"), second = Open("2");
  RouteSpec spec = Serving("1");
  spec.shadow = "2";
  spec.shadow_share = 1;
  engine_->Publish(spec, {first, second});
  engine_->Submit(1, {}, RequestOf(7));
  const auto pair = Next<ShadowEvent>();
  EXPECT_EQ(pair.model + pair.version + pair.shadow, "sum12");
  EXPECT_EQ(pair.request_id, "");
  EXPECT_EQ(pair.num_rows, 1);
  EXPECT_EQ(pair.expected, std::vector<std::string>{Floats({7})});
  EXPECT_EQ(pair.got, pair.expected);
  SubmitOptions drawn;
  drawn.drew_version = true;
  engine_->Submit(2, {}, RequestOf(8, "1"));
  engine_->Submit(3, drawn, RequestOf(9, "1"));
  EXPECT_EQ(Next<ShadowEvent>().expected, std::vector<std::string>{Floats({9})});
}

TEST_F(EngineTest, ItsLogLinesAreEvents) {
  Make();
  LogRecord record;
  record.level = LogLevel::kError;
  record.message = "a line";
  record.exception = "why";
  Log(record);
  const auto line = Next<LogEvent>();
  EXPECT_EQ(line.text, "a line\nwhy");
  EXPECT_EQ(line.logger, "serve");
  EXPECT_EQ(line.level, LogLevel::kError);
}

TEST_F(EngineTest, DrainsAnswersAndCloses) {
  Make();
  const auto version = Open("1");
  engine_->Publish(Serving("1"), {version});
  Listen();
  engine_->SetHealth("", true);
  EXPECT_EQ(ClientCall(channel_, "/grpc.health.v1.Health/Check", "").Text(), "\x08\x01");
  last_model_->CloseGate();
  ClientCall accepted(channel_, kPredict, RequestOf(7));
  last_model_->WaitUntilStarted(1);
  engine_->Drain();
  engine_->Submit(1, {}, RequestOf(8));
  EXPECT_EQ(Next<AnswerEvent>().status.code, StatusCode::kUnavailable);
  EXPECT_FALSE(engine_->WaitUntilIdle(0.01));
  std::thread opening([this] { last_model_->OpenGate(); });
  EXPECT_TRUE(engine_->Close(kPatienceS));
  opening.join();
  EXPECT_TRUE(IsAnswer(accepted.Text(), "1", 7));
  EXPECT_TRUE(engine_->Close(0));
  EXPECT_THROW(engine_->Listen({}, {}, {}, std::nullopt), Error);
}

TEST_F(EngineTest, ClosesWithoutWaitingForWhatTakesTooLong) {
  Make();
  const auto version = Open("1");
  engine_->Publish(Serving("1"), {version});
  Listen();
  last_model_->CloseGate();
  engine_->Submit(1, {}, RequestOf(7));
  last_model_->WaitUntilStarted(1);
  ClientCall stuck(channel_, kPredict, RequestOf(8));
  EXPECT_FALSE(engine_->Close(0.01));
  EXPECT_FALSE(stuck.Wait().ok());
  last_model_->OpenGate();
}

TEST_F(EngineTest, ManyVersionsSwapUnderLoadWithoutAFailedRequest) {
  Make();
  auto now = Open("0");
  engine_->Publish(Serving("0"), {now});
  std::atomic<bool> is_over{false};
  std::thread swapping([&] {
    for (int i = 1; !is_over.load(); ++i) {
      auto next = Open(std::to_string(i));
      engine_->Publish(Serving(std::to_string(i)), {next});
      now->Close();
      now = std::move(next);
    }
  });
  for (int i = 0; i < 2000; ++i) engine_->Submit(i, {}, RequestOf(i % 100));
  for (int i = 0; i < 2000; ++i) {
    const auto answer = Next<AnswerEvent>();
    ASSERT_TRUE(answer.status.ok()) << answer.status.text;
  }
  is_over = true;
  swapping.join();
}

}  // namespace
}  // namespace recsys
