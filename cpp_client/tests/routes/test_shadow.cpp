// Requests that a second version computes too.

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "engine/core/shadow.h"
#include "engine/routes/route_table.h"
#include "tests/core/gateway_parts.h"

namespace recsys {
namespace {

/// Version 1 answers; version 2 computes all in the shadow.
class ShadowTest : public GatewayTest {
 protected:
  void Start(const VersionSettings& settings = {}) {
    first_ = Host({}, "1");
    second_ = Host(settings, "2");
    router_.Set(
        {first_.servable, std::make_shared<const Shadow>(
                              second_.servable, std::vector{first_.servable, second_.servable},
                              [this](ShadowEvent pair) { return Take(std::move(pair)); })});
  }
  /// Keeps the request: the shadow's copy points into it.
  std::shared_ptr<SumRequest> Predict(const std::string& name, const SumRequest::Ids& ids = {{1}}) {
    sent_.push_back(GatewayTest::Predict(name, ids));
    return sent_.back();
  }
  bool Take(ShadowEvent pair) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (has_room_) pairs_.push_back(std::move(pair));
    return has_room_;
  }
  /// Ends both versions, so that all that was accepted has run.
  void Finish() {
    first_.servable->Close();
    second_.servable->Close();
  }
  static float ScoreOf(const OutputCopies& outputs, std::size_t row) {
    float score = 0;
    std::memcpy(&score, outputs.at(0).data() + row * sizeof score, sizeof score);
    return score;
  }
  VersionTotals Totals() const { return second_.servable->metrics().Totals(); }

  std::vector<std::shared_ptr<SumRequest>> sent_;
  Opened first_, second_;
  std::mutex mutex_;
  bool has_room_ = true;
  std::vector<ShadowEvent> pairs_;
};

TEST_F(ShadowTest, BothVersionsOutputsAreCopied) {
  Start();
  const auto request = Predict("a", {{1, 2}, {3}});
  Predict("b", {{7}});
  answers_.Wait(2);
  Finish();
  ASSERT_EQ(pairs_.size(), 2U);
  for (const ShadowEvent& pair : pairs_) {
    EXPECT_EQ(pair.model + pair.version + pair.shadow, "sum12");
    EXPECT_EQ(pair.expected, pair.got);
    // Copies of the request's own rows, not of a whole batch.
    EXPECT_EQ(pair.num_bytes(), 2 * 4 * pair.num_rows);
  }
  const ShadowEvent& two_rows = pairs_[0].num_rows == 2 ? pairs_[0] : pairs_[1];
  EXPECT_EQ(two_rows.request_id, "a");
  EXPECT_EQ(ScoreOf(two_rows.expected, 1), request->expected()[1]);
  EXPECT_EQ(Totals().of(Outcome::kOk), 0);
  EXPECT_EQ(Totals().shadow_failed + Totals().shadow_dropped, 0);
}

TEST_F(ShadowTest, ASlowShadowDelaysNobody) {
  Start();
  second_.model->CloseGate();
  for (int i = 0; i < 5; ++i) Predict(std::to_string(i));
  answers_.Wait(5);
  EXPECT_TRUE(gateway_.WaitUntilIdle(MonotonicSeconds() + 60));
  EXPECT_TRUE(pairs_.empty());
  second_.model->OpenGate();
  Finish();
  EXPECT_EQ(pairs_.size(), 5U);
}

TEST_F(ShadowTest, AFasterShadowWaitsForTheAnswer) {
  Start();
  first_.model->CloseGate();
  Predict("a");
  first_.model->WaitUntilStarted(1);
  while (Totals().batch_rows.count() == 0) std::this_thread::yield();
  EXPECT_TRUE(pairs_.empty());
  first_.model->OpenGate();
  answers_.Wait(1);
  Finish();
  EXPECT_EQ(pairs_.size(), 1U);
}

TEST_F(ShadowTest, WhatFindsNoRoomIsDroppedAndCounted) {
  VersionSettings settings;
  settings.limits.max_queue_rows = settings.limits.max_request_rows = 2;
  Start(settings);
  second_.model->CloseGate();
  Predict("first");
  second_.model->WaitUntilStarted(1);
  for (int i = 0; i < 5; ++i) Predict(std::to_string(i));
  answers_.Wait(6);
  EXPECT_EQ(Totals().shadow_dropped, 3);
  second_.model->OpenGate();
  Finish();
  EXPECT_EQ(pairs_.size(), 3U);
}

TEST_F(ShadowTest, AFullRingDropsThePair) {
  has_room_ = false;
  Start();
  Predict("a");
  answers_.Wait(1);
  Finish();
  EXPECT_EQ(Totals().shadow_dropped, 1);
}

TEST_F(ShadowTest, AShadowThatFailsIsCountedAndTheClientGetsItsAnswer) {
  const HeardLog log;
  Start();
  second_.model->on_predict = [](const Batch&) { throw std::runtime_error("bad"); };
  const auto request = Predict("a");
  answers_.Wait(1);
  Finish();
  EXPECT_EQ(answers_.Of("a").scores, request->expected());
  EXPECT_EQ(Totals().shadow_failed, 1);
  EXPECT_EQ(Totals().of(Outcome::kFailed), 0);
  EXPECT_EQ(Count(Outcome::kOk), 1);
}

/// A pair whose owner fails must not become the client's INTERNAL.
TEST_F(ShadowTest, AnExceptionOfTheShadowsAnswerIsNotTheClients) {
  const HeardLog log;
  first_ = Host({}, "1");
  second_ = Host({}, "2");
  const auto shadow = std::make_shared<const Shadow>(
      second_.servable, std::vector{first_.servable, second_.servable},
      [](const ShadowEvent&) -> bool { throw std::bad_alloc(); });
  router_.Set({first_.servable, shadow});
  first_.model->CloseGate();
  const auto request = Predict("a");
  first_.model->WaitUntilStarted(1);
  // So that the answer of the first version completes the pair.
  while (Totals().batch_rows.count() == 0) std::this_thread::yield();
  second_.servable->Close();
  first_.model->OpenGate();
  answers_.Wait(1);
  EXPECT_TRUE(answers_.Of("a").status.ok()) << answers_.Of("a").status.text;
  EXPECT_EQ(answers_.Of("a").scores, request->expected());
  EXPECT_EQ(Totals().shadow_failed, 1);
}

TEST_F(ShadowTest, ARequestThatIsWrongForTheShadowIsCountedAndAnswered) {
  VersionSettings settings;
  settings.limits.max_request_rows = 1;
  Start(settings);
  Predict("a", {{1}, {2}});
  answers_.Wait(1);
  EXPECT_TRUE(answers_.Of("a").status.ok());
  Finish();
  EXPECT_EQ(Totals().shadow_failed, 1);
}

TEST_F(ShadowTest, WhereTheVersionThatAnswersFailsNothingIsCompared) {
  const HeardLog log;
  Start();
  first_.model->on_predict = [](const Batch&) { throw std::runtime_error("bad"); };
  Predict("a");
  answers_.Wait(1);
  Finish();
  EXPECT_EQ(answers_.Of("a").status.code, StatusCode::kInternal);
  EXPECT_TRUE(pairs_.empty());
  EXPECT_EQ(Totals().shadow_failed, 0);
}

}  // namespace
}  // namespace recsys
