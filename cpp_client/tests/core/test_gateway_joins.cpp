// Requests of a polling thread, which join their queues together.

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/executor/pending_decisions.h"
#include "engine/core/shadow.h"
#include "tests/core/gateway_parts.h"

namespace recsys {
namespace {

using Texts = std::vector<std::string>;

TEST_F(GatewayTest, RequestsOfOneRoundJoinTogetherInTheirOrder) {
  const Opened opened = Serve();
  opened.model->CloseGate();
  PendingDecisions pending;
  const auto a = Predict("a"), b = Predict("b", {{2}, {3}});
  EXPECT_EQ(num_accepted(), 0);
  EXPECT_EQ(gateway_.num_active(), 2);
  EXPECT_EQ(pending.WaitS(), 0);
  opened.model->OpenGate();
  pending.AfterRound();
  answers_.Wait(2);
  EXPECT_EQ(answers_.names(), (Texts{"a", "b"}));
  EXPECT_EQ(answers_.Of("a").scores, a->expected());
  EXPECT_EQ(answers_.Of("b").scores, b->expected());
  EXPECT_EQ(opened.model->batches(), std::vector<std::int64_t>{3});
  EXPECT_EQ(watcher_.accepted(), (Texts{"a", "b"}));
  EXPECT_EQ(num_accepted(), 2);
  EXPECT_EQ(gateway_.num_active(), 0);
}

TEST_F(GatewayTest, RequestsOfSeveralVersionsJoinTheirOwn) {
  const Opened first = Serve(), second = Host({}, "2");
  PendingDecisions pending;
  std::vector<std::shared_ptr<SumRequest>> requests;
  for (int i = 0; i < 10; ++i) {
    router_.Set({i % 3 == 0 ? second.servable : first.servable, nullptr});
    requests.push_back(Predict(std::to_string(i), {{i}}));
  }
  pending.AfterRound();
  answers_.Wait(10);
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(answers_.Of(std::to_string(i)).scores, requests[i]->expected());
    EXPECT_EQ(requests[i]->servable, i % 3 == 0 ? second.servable : first.servable);
  }
}

TEST_F(GatewayTest, ThoseThatDoNotFitAreRefusedAndTheOthersJoin) {
  VersionSettings settings;
  settings.limits.max_request_rows = settings.limits.max_queue_rows = 2;
  const Opened opened = Serve(settings);
  opened.model->CloseGate();
  Predict("plug");
  opened.model->WaitUntilStarted(1);
  PendingDecisions pending;
  for (const char* name : {"a", "b", "refused", "also refused"}) Predict(name);
  EXPECT_EQ(answers_.num_done(), 0);
  // Not from the size that this round has read, which a batch may take meanwhile.
  pending.AfterRound();
  EXPECT_EQ(answers_.names(), (Texts{"refused", "also refused"}));
  EXPECT_EQ(answers_.Of("refused").status.code, StatusCode::kResourceExhausted);
  EXPECT_EQ(Count(Outcome::kRejected), 2);
  EXPECT_EQ(watcher_.accepted(), (Texts{"plug", "a", "b"}));
  opened.model->OpenGate();
  answers_.Wait(5);
  EXPECT_EQ(Count(Outcome::kOk), 3);
}

TEST_F(GatewayTest, OnesWhoseVersionIsClosedBeforeTheyJoinGoToTheNext) {
  const Opened closed = Serve();
  PendingDecisions pending;
  const auto a = Predict("a"), b = Predict("b");
  const Opened next = Host({}, "2");
  router_.Set({next.servable, nullptr});
  closed.servable->Close();
  pending.AfterRound();
  answers_.Wait(2);
  for (const auto& request : {a, b}) {
    EXPECT_EQ(request->servable, next.servable);
    EXPECT_EQ(answers_.Of(request->request_id).scores, request->expected());
  }
}

TEST_F(GatewayTest, OnesThatAreGivenUpBeforeTheyJoinAreNotComputed) {
  const Opened opened = Serve();
  opened.model->CloseGate();
  Predict("plug");
  opened.model->WaitUntilStarted(1);
  PendingDecisions pending;
  const auto unwanted = Predict("unwanted");
  gateway_.Cancel(unwanted);
  pending.AfterRound();
  EXPECT_EQ(answers_.Of("unwanted").status.code, StatusCode::kCancelled);
  EXPECT_EQ(opened.servable->Totals().of(Outcome::kCancelled), 1);
  opened.model->OpenGate();
  answers_.Wait(2);
  EXPECT_EQ(opened.model->batches(), std::vector<std::int64_t>{1});
}

TEST_F(GatewayTest, OnesThatAServerHasReadBeforeItDrainsAreAnswered) {
  Serve();
  PendingDecisions pending;
  const auto read = Predict("read");
  gateway_.Drain();
  EXPECT_EQ(Refusal(Make("late")).code, StatusCode::kUnavailable);
  EXPECT_FALSE(gateway_.WaitUntilIdle(0));
  pending.AfterRound();
  answers_.Wait(2);
  EXPECT_EQ(answers_.Of("read").scores, read->expected());
}

TEST_F(GatewayTest, OnesThatWereReadJoinAtTheEndOfTheirThread) {
  Serve();
  {
    PendingDecisions pending;
    Predict("a");
  }
  answers_.Wait(1);
  EXPECT_TRUE(answers_.Of("a").status.ok());
}

TEST_F(GatewayTest, TheShadowGetsThoseThatHaveJoined) {
  VersionSettings settings;
  settings.limits.max_request_rows = settings.limits.max_queue_rows = 2;
  const Opened opened = Host(settings), second = Host({}, "2");
  std::mutex mutex;
  std::vector<std::string> pairs;
  router_.Set(
      {opened.servable, std::make_shared<Shadow>(second.servable, std::vector{opened.servable},
                                                 [&](ShadowEvent event) {
                                                   const std::lock_guard<std::mutex> lock(mutex);
                                                   pairs.push_back(event.request_id);
                                                   return true;
                                                 })});
  // Whose memory the shadow's copies share.
  std::vector<std::shared_ptr<SumRequest>> requests;
  {
    PendingDecisions pending;
    for (const char* name : {"a", "b", "refused"}) requests.push_back(Predict(name));
    pending.AfterRound();
  }
  answers_.Wait(3);
  opened.servable->Close();
  second.servable->Close();
  std::sort(pairs.begin(), pairs.end());
  EXPECT_EQ(pairs, (Texts{"a", "b"}));
}

}  // namespace
}  // namespace recsys
