// The road of requests as a whole: routes, refusals, counts, cancels, swaps, drain.

#include <gtest/gtest.h>

#include <future>

#include "engine/core/executor/executor.h"
#include "recsys/error.h"
#include "tests/core/gateway_parts.h"

namespace recsys {
namespace {

TEST_F(GatewayTest, AnswersAndCounts) {
  Serve();
  const auto request = Predict("a", {{1, 2}, {3}});
  answers_.Wait(1);
  EXPECT_EQ(answers_.Of("a").scores, request->expected());
  EXPECT_TRUE(gateway_.WaitUntilIdle(MonotonicSeconds() + 60));
  EXPECT_EQ(gateway_.num_active(), 0);
  EXPECT_EQ(Count(Outcome::kOk), 1);
  EXPECT_EQ(num_accepted(), 1);
  EXPECT_EQ(watcher_.accepted(), std::vector<std::string>{"a"});
  EXPECT_EQ(watcher_.ended(), std::vector<std::string>{"a OK"});
  EXPECT_EQ(watcher_.outputs_, std::vector<std::string>(1));
}

TEST_F(GatewayTest, KeepsTheOutputsThatItsObserverAsksFor) {
  Serve();
  watcher_.kept_ = "b";
  Predict("a", {{7}});
  const auto kept = Predict("b", {{1, 2}, {3}});
  answers_.Wait(2);
  const std::vector<float> sums = kept->expected();
  const auto size = sums.size() * sizeof(float);
  const std::string expected(reinterpret_cast<const char*>(sums.data()), size);
  EXPECT_EQ(watcher_.outputs_[watcher_.ended()[0] == "b OK" ? 0 : 1], expected);
}

TEST_F(GatewayTest, RefusesWithTheStatusOfTheErrorAndCountsIt) {
  const HeardLog log;
  VersionSettings settings;
  settings.limits.max_request_rows = settings.limits.max_queue_rows = 2;
  EXPECT_EQ(Refusal(Make("early")).code, StatusCode::kUnavailable);
  Serve(settings);
  const auto unknown = Make("unknown");
  unknown->model = "other";
  EXPECT_EQ(Refusal(unknown).code, StatusCode::kNotFound);
  const auto wrong = Make("wrong", {{-1}});
  EXPECT_EQ(Refusal(wrong).code, StatusCode::kInvalidArgument);
  const auto unreadable = Make("unreadable");
  unreadable->on_read = [](const Servable&) {
    throw Error(ErrorKind::kRequest, "inputs: got nothing");
  };
  EXPECT_EQ(Refusal(unreadable).text, "inputs: got nothing");
  const auto faulty = Make("faulty");
  faulty->on_read = [](const Servable&) { throw std::runtime_error("oops at 0x1"); };
  const Status fault = Refusal(faulty);
  EXPECT_EQ(fault.code, StatusCode::kInternal);
  EXPECT_EQ(fault.text, "the server failed on this request; its log says why");
  EXPECT_EQ(log.text(), "ERROR a request failed outside the model\noops at 0x1\n");
  EXPECT_EQ(Refusal(Make("large", {{1}, {1}, {1}})).code, StatusCode::kInvalidArgument);

  EXPECT_EQ(Count(Outcome::kUnavailable), 1);
  EXPECT_EQ(Count(Outcome::kNotFound), 1);
  EXPECT_EQ(Count(Outcome::kInvalid), 3);
  EXPECT_EQ(Count(Outcome::kFailed), 1);
  EXPECT_EQ(num_accepted(), 0);
  EXPECT_EQ(gateway_.num_active(), 0);
  EXPECT_EQ(watcher_.ended().size(), 6U);
  EXPECT_TRUE(watcher_.accepted().empty());
}

TEST_F(GatewayTest, AFullQueueRejectsWithAHint) {
  VersionSettings settings;
  settings.limits.max_request_rows = settings.limits.max_queue_rows = 2;
  const Opened opened = Serve(settings);
  opened.model->CloseGate();
  Predict("plug");
  opened.model->WaitUntilStarted(1);
  Predict("waits", {{1}, {2}});
  const Status status = Refusal(Make("refused"));
  EXPECT_EQ(status.code, StatusCode::kResourceExhausted);
  EXPECT_EQ(status.text, "queue: 2 rows wait, at most 2 may; try again later");
  EXPECT_GE(status.retry_after_ms, 1);
  EXPECT_EQ(Count(Outcome::kRejected), 1);
  opened.model->OpenGate();
  answers_.Wait(3);
}

TEST_F(GatewayTest, ARequestThatIsGivenUpWhileItWaitsLeavesTheQueueAtOnce) {
  const Opened opened = Serve();
  opened.model->CloseGate();
  Predict("plug");
  opened.model->WaitUntilStarted(1);
  const auto unwanted = Predict("unwanted");
  const auto late = Make("late");
  late->deadline_s = MonotonicSeconds() + 0.01;  // a moment: clocks may be that far apart
  gateway_.Predict(late);
  gateway_.Cancel(unwanted);
  gateway_.Cancel(unwanted);
  gateway_.Cancel(late);
  EXPECT_EQ(answers_.Of("unwanted").status.code, StatusCode::kCancelled);
  EXPECT_EQ(answers_.Of("unwanted").status.text, "the client gave up");
  EXPECT_EQ(answers_.Of("late").status.code, StatusCode::kDeadlineExceeded);
  EXPECT_EQ(answers_.Of("late").status.text, "the deadline passed");
  opened.model->OpenGate();
  EXPECT_TRUE(gateway_.WaitUntilIdle(MonotonicSeconds() + 60));
  EXPECT_EQ(Count(Outcome::kCancelled), 1);
  EXPECT_EQ(Count(Outcome::kExpired), 1);
  EXPECT_EQ(opened.model->batches(), std::vector<std::int64_t>{1});
}

TEST_F(GatewayTest, ARequestThatIsGivenUpWhileItIsComputedEndsAtOnceAndItsAnswerIsDropped) {
  const Opened opened = Serve();
  opened.model->CloseGate();
  const auto running = Predict("running");
  opened.model->WaitUntilStarted(1);
  gateway_.Cancel(running);
  EXPECT_EQ(answers_.Of("running").status.code, StatusCode::kCancelled);
  opened.model->OpenGate();
  const auto next = Predict("next");
  answers_.Wait(2);
  EXPECT_EQ(answers_.Of("running").status.code, StatusCode::kCancelled);
  EXPECT_EQ(answers_.Of("next").scores, next->expected());
  EXPECT_EQ(Count(Outcome::kCancelled), 1);
  EXPECT_EQ(Count(Outcome::kOk), 1);
}

TEST_F(GatewayTest, ARequestThatIsGivenUpBeforeItHasJoinedItsQueueIsNotComputed) {
  const Opened opened = Serve();
  opened.model->CloseGate();
  Predict("plug");
  opened.model->WaitUntilStarted(1);
  const auto early = Make("early");
  early->on_read = [&](const Servable&) { gateway_.Cancel(early); };
  gateway_.Predict(early);
  early->on_read = nullptr;
  EXPECT_EQ(answers_.Of("early").status.code, StatusCode::kCancelled);
  opened.model->OpenGate();
  answers_.Wait(2);
  opened.servable->Close();
  EXPECT_EQ(opened.model->batches(), std::vector<std::int64_t>{1});
}

TEST_F(GatewayTest, ARequestThatIsRefusedAfterItWasGivenUpEndsOnce) {
  Serve();
  const auto wrong = Make("wrong", {{-1}});
  gateway_.Cancel(wrong);
  gateway_.Predict(wrong);
  gateway_.Cancel(wrong);
  EXPECT_EQ(answers_.Of("wrong").status.code, StatusCode::kInvalidArgument);
  EXPECT_EQ(answers_.num_done(), 1);
}

TEST_F(GatewayTest, ACancelThatComesAfterTheAnswerChangesNothing) {
  Serve();
  const auto request = Predict("a");
  answers_.Wait(1);
  gateway_.Cancel(request);
  EXPECT_TRUE(answers_.Of("a").status.ok());
  EXPECT_EQ(Count(Outcome::kCancelled), 0);
}

TEST_F(GatewayTest, ARequestWhoseVersionWasClosedBeforeItJoinedGoesToTheNextVersion) {
  const Opened old = Serve();
  const Opened next = Host({}, "2");
  const auto request = Make("a");
  int num_reads = 0;
  request->on_read = [&](const Servable& servable) {
    if (++num_reads > 1) return;
    EXPECT_EQ(servable.version(), "1");
    router_.Set({next.servable, nullptr});
    old.servable->Close();
  };
  gateway_.Predict(request);
  answers_.Wait(1);
  EXPECT_EQ(answers_.Of("a").scores, request->expected());
  EXPECT_EQ(request->servable->version(), "2");
  EXPECT_EQ(num_reads, 2);
  EXPECT_EQ(Count(Outcome::kUnavailable), 0);
  EXPECT_EQ(watcher_.accepted().size(), 1U);
}

TEST_F(GatewayTest, AVersionThatStaysClosedIsUnavailableAfterAFewRoutes) {
  Serve().servable->Close();
  int num_routes = 0;
  router_.on_find = [&] { ++num_routes; };
  const Status status = Refusal(Make("a"));
  EXPECT_EQ(status.code, StatusCode::kUnavailable);
  EXPECT_EQ(status.text, "the server is stopping; send the request to another one");
  EXPECT_GT(num_routes, 1);
  EXPECT_LT(num_routes, 100);
}

TEST_F(GatewayTest, ADrainingServerAnswersWhatItAcceptedAndRefusesTheRest) {
  const Opened opened = Serve();
  opened.model->CloseGate();
  const auto accepted = Predict("accepted");
  opened.model->WaitUntilStarted(1);
  gateway_.Drain();
  EXPECT_TRUE(gateway_.is_draining());
  const Status status = Refusal(Make("late"));
  EXPECT_EQ(status.code, StatusCode::kUnavailable);
  EXPECT_EQ(status.text, "the server is stopping; send the request to another one");
  EXPECT_FALSE(gateway_.WaitUntilIdle(MonotonicSeconds() + 0.01));
  auto waiting = std::async(std::launch::async,
                            [this] { return gateway_.WaitUntilIdle(MonotonicSeconds() + 60); });
  opened.model->OpenGate();
  EXPECT_TRUE(waiting.get());
  EXPECT_EQ(answers_.Of("accepted").scores, accepted->expected());
  EXPECT_EQ(Count(Outcome::kUnavailable), 1);
}

TEST_F(GatewayTest, CountsRequestsThatCouldNotBeRead) {
  gateway_.Refused({StatusCode::kInvalidArgument, "got 3 bytes that are no request", 0}, "kserve");
  EXPECT_EQ(Count(Outcome::kInvalid), 1);
  EXPECT_EQ(watcher_.ended(), std::vector<std::string>{" INVALID_ARGUMENT"});
  EXPECT_EQ(watcher_.protocols_, std::vector<std::string>{"kserve"});
}

TEST_F(GatewayTest, RequestsInTheShadowAreNotCounted) {
  const Opened opened = Serve();
  const auto request = Make("shadow");
  request->servable = opened.servable;
  request->Read(*opened.servable);
  opened.servable->checker().Check(request->raw, &request->checked);
  opened.servable->executor().Submit(request);
  answers_.Wait(1);
  EXPECT_EQ(answers_.Of("shadow").scores, request->expected());
  EXPECT_EQ(Count(Outcome::kOk), 0);
  EXPECT_EQ(gateway_.num_active(), 0);
  EXPECT_TRUE(watcher_.ended().empty());
}

TEST(RequestIds, ThatWouldFillTheLogOrAreNoTextAreRefused) {
  CheckRequestId("");
  CheckRequestId(std::string(128, 'a'));
  const auto text_of = [](const std::string& id, std::string_view field) {
    try {
      CheckRequestId(id, field);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kRequest);
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(text_of(std::string(129, 'a'), "request_id"),
            "request_id: got 129 bytes, expected at most 128");
  EXPECT_EQ(text_of("\xed\xa0\x80", "id"), "id: got half a surrogate pair, expected text in UTF-8");
}

}  // namespace
}  // namespace recsys
