// Shadows: what counts as the same answer, and what becomes of requests that are computed twice.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <future>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "server/models/shadow.h"
#include "tests/models/world.h"

namespace recsys {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kBase = 100;
constexpr float kAllowed = 1e-6F + 1e-4F * kBase;

using Values = std::vector<float>;

/// One output, "score", of so many rows.
Rows RowsOf(const std::vector<Values>& outputs) {
  Rows rows;
  auto owner = std::make_shared<std::vector<Values>>(outputs);
  rows.num_rows = static_cast<std::int64_t>(outputs[0].size());
  for (const Values& values : *owner) {
    rows.values.emplace_back(reinterpret_cast<const char*>(values.data()),
                             values.size() * sizeof(float));
  }
  rows.owner = owner;
  return rows;
}

bool Same(const Values& expected, const Values& got) {
  return SameRows(RowsOf({expected}), RowsOf({got}), std::vector<std::size_t>{0});
}

Signature WithOutputs(const std::vector<Output>& outputs) {
  Signature signature;
  signature.outputs = outputs;
  return signature;
}

TEST(SameRows, ComparesValuesWithinTolerance) {
  const Values expected = {kBase, 0};
  EXPECT_TRUE(Same(expected, {kBase, 0}));
  EXPECT_TRUE(Same(expected, {kBase + 0.9F * kAllowed, 0}));
  EXPECT_TRUE(Same(expected, {kBase - 0.9F * kAllowed, 0.9e-6F}));
  EXPECT_FALSE(Same(expected, {kBase + 1.1F * kAllowed, 0}));
  EXPECT_FALSE(Same(expected, {kBase, 1.1e-6F}));
  EXPECT_FALSE(Same(expected, {kBase, kNan}));
  EXPECT_FALSE(Same(expected, {kInf, 0}));
}

TEST(SameRows, TakesWhatIsNoNumberForTheSameAsItself) {
  EXPECT_TRUE(Same({kNan, kInf}, {kNan, kInf}));
  EXPECT_TRUE(Same({kNan, 1}, {kNan, std::nextafter(1.0F, 2.0F)}));
  EXPECT_FALSE(Same({kInf, 0}, {-kInf, 0}));
  EXPECT_FALSE(Same({kInf, 0}, {1, 0}));
}

TEST(SameRows, MatchesOutputsByNameWhichMustHaveOneShape) {
  const Output a{"a", {}}, b{"b", {}}, wide{"a", {2}};
  const Signature both = WithOutputs({a, b}), turned = WithOutputs({b, a});
  EXPECT_TRUE(SameRows(RowsOf({{1}, {2}}), RowsOf({{2}, {1}}), MatchOutputs(both, turned)));
  EXPECT_FALSE(SameRows(RowsOf({{1}, {2}}), RowsOf({{1}, {2}}), MatchOutputs(both, turned)));
  EXPECT_FALSE(MatchOutputs(both, WithOutputs({a})).has_value());
  EXPECT_FALSE(MatchOutputs(WithOutputs({a}), WithOutputs({b})).has_value());
  EXPECT_FALSE(MatchOutputs(WithOutputs({a}), WithOutputs({wide})).has_value());
  EXPECT_FALSE(SameRows(RowsOf({{1}}), RowsOf({{1}}), std::nullopt));
  EXPECT_FALSE(Same({1, 2}, {1}));
}

/// Version 1 answers; version 2 computes all in the shadow.
class Shadows : public testing::Test {
 protected:
  Shadows() { settings_.routing = {"1", "", 0, "2", 100}; }

  /// `number`: of the shadow; 100 is what the first one has.
  void Start(int number) {
    world_ = std::make_unique<World>(settings_);
    world_->wrap["1"] = [this](AddModel& model) { model.gate = first_; };
    world_->wrap["2"] = [this](AddModel& model) {
      model.gate = second_;
      model.on_predict = [](float x) {
        if (x == kBad) throw std::runtime_error("bad");
      };
      if (is_renamed_) model.signature_.dense[0].name = "other";
      if (has_more_) model.signature_.outputs.push_back({"more", {}});
    };
    AddVersion(world_->root(), "small", "1", 100);
    AddVersion(world_->root(), "small", "2", number);
    world_->manager().Rescan();
    ASSERT_EQ(world_->States(), "1:ready 2:ready");
  }
  /// That the client gets the first one's answer.
  void Expect(float x) {
    const Answer answer = world_->Ask(x);
    EXPECT_EQ(answer.status.text, "");
    EXPECT_EQ(answer.version, "1");
    EXPECT_EQ(answer.y, Values{x + 100});
  }
  std::array<std::int64_t, 4> CountsOnce(std::int64_t sum) {
    for (const double until_s = MonotonicSeconds() + 60;;) {
      const auto counts = world_->Counts("2").shadow;
      if (counts[0] + counts[1] + counts[2] + counts[3] >= sum) return counts;
      if (MonotonicSeconds() > until_s) {
        ADD_FAILURE() << "too little was counted";
        return counts;
      }
      std::this_thread::yield();
    }
  }

  using Results = std::array<std::int64_t, 4>;
  static constexpr float kBad = 777;

  HeardLog log_;
  ModelSettings settings_;
  bool is_renamed_ = false;
  bool has_more_ = false;
  const std::shared_ptr<Gate> first_ = std::make_shared<Gate>();
  const std::shared_ptr<Gate> second_ = std::make_shared<Gate>();
  std::unique_ptr<World> world_;
};

TEST_F(Shadows, EveryAnswerOfTheSameWeightsIsTheSame) {
  Start(100);
  for (int i = 0; i < 50; ++i) Expect(static_cast<float>(i));
  EXPECT_EQ(CountsOnce(50), (Results{50, 0, 0, 0}));
  EXPECT_EQ(world_->Counts("2").num_ok(), 0);
  EXPECT_EQ(world_->Counts("1").num_ok(), 50);
  EXPECT_TRUE(world_->gateway().WaitUntilIdle(MonotonicSeconds() + 60));
}

TEST_F(Shadows, OfOtherWeightsAreDifferentAndReachNoClient) {
  Start(300);
  for (int i = 0; i < 50; ++i) Expect(static_cast<float>(i));
  EXPECT_EQ(CountsOnce(50), (Results{0, 50, 0, 0}));
}

TEST_F(Shadows, ASlowOneDelaysNobodyAndIsComparedLater) {
  Start(100);
  second_->Close();
  for (int i = 0; i < 5; ++i) Expect(1);
  EXPECT_EQ(world_->Counts("2").shadow, (Results{0, 0, 0, 0}));
  second_->Open();
  EXPECT_EQ(CountsOnce(5), (Results{5, 0, 0, 0}));
}

TEST_F(Shadows, AFasterOneWaitsForTheFirst) {
  Start(100);
  first_->Close();
  auto answer = world_->AskLater(1);
  first_->WaitUntilReached();
  while (world_->Counts("2").batch_rows.count() == 0) std::this_thread::yield();
  EXPECT_EQ(world_->Counts("2").shadow, (Results{0, 0, 0, 0}));
  first_->Open();
  EXPECT_EQ(answer.get().version, "1");
  EXPECT_EQ(CountsOnce(1), (Results{1, 0, 0, 0}));
}

TEST_F(Shadows, WhatAFullQueueCannotTakeIsDroppedAndCounted) {
  settings_.limits.max_queue_rows = settings_.limits.max_request_rows = 2;
  Start(100);
  second_->Close();
  Expect(1);
  second_->WaitUntilReached();
  for (int i = 0; i < 5; ++i) Expect(1);
  EXPECT_EQ(world_->Counts("2").shadow, (Results{0, 0, 0, 3}));
  second_->Open();
  EXPECT_EQ(CountsOnce(6), (Results{3, 0, 0, 3}));
}

TEST_F(Shadows, OnesThatFailAreCountedAndNothingElse) {
  Start(100);
  Expect(kBad);
  EXPECT_EQ(CountsOnce(1), (Results{0, 0, 1, 0}));
  EXPECT_EQ(world_->Counts("2").num_failed(), 0);
  EXPECT_EQ(world_->Counts("1").num_ok(), 1);
}

TEST_F(Shadows, ARequestThatIsWrongForTheShadowIsCountedAndAnswered) {
  is_renamed_ = true;
  Start(100);
  Expect(1);
  EXPECT_EQ(CountsOnce(1), (Results{0, 0, 1, 0}));
}

TEST_F(Shadows, OtherOutputsAreDifferent) {
  has_more_ = true;
  Start(100);
  Expect(1);
  EXPECT_EQ(CountsOnce(1), (Results{0, 1, 0, 0}));
}

TEST_F(Shadows, WhereTheFirstFailsNothingIsCompared) {
  Start(100);
  world_->manager().SetRouting("small", {"2", "", 0, "1", 100});
  EXPECT_EQ(world_->Ask(kBad).status.code, StatusCode::kInternal);
  const Answer answer = world_->Ask(1);
  EXPECT_EQ(answer.version, "2");
  for (const double until_s = MonotonicSeconds() + 60; MonotonicSeconds() < until_s;) {
    if (world_->Counts("1").shadow[0] > 0) break;
    std::this_thread::yield();
  }
  EXPECT_EQ(world_->Counts("1").shadow, (Results{1, 0, 0, 0}));
}

TEST_F(Shadows, RequestsThatNameAVersionHaveNone) {
  Start(100);
  EXPECT_EQ(world_->Ask(1, "1").version, "1");
  Expect(1);
  EXPECT_EQ(CountsOnce(1), (Results{1, 0, 0, 0}));
}

TEST_F(Shadows, OneThatEndsWhileItComputesLetsItsVersionLeave) {
  Start(100);
  second_->Close();
  for (int i = 0; i < 10; ++i) Expect(1);
  second_->WaitUntilReached();
  auto routed = std::async(std::launch::async, [this] { world_->manager().Unload("small", "2"); });
  Expect(2);
  second_->Open();
  routed.get();
  EXPECT_EQ(world_->Status("2").state, ModelState::kAvailable);
  EXPECT_EQ(world_->Serving(), "1");
}

TEST(AreAlike, ChecksOfOneSignatureAndLimitsAreAndOthersAreNot) {
  const Signature signature = AddModel(1).signature_;
  const RequestLimits limits{10, 20, 30};
  const RequestChecker checker(signature, limits);
  EXPECT_TRUE(AreAlike(checker, RequestChecker(signature, limits)));
  EXPECT_FALSE(AreAlike(checker, RequestChecker(signature, limits, true)));
  EXPECT_FALSE(AreAlike(checker, RequestChecker(signature, {10, 20, 31})));
  Signature other = signature;
  other.sparse[0].tables[0].num_embeddings = 11;
  EXPECT_FALSE(AreAlike(checker, RequestChecker(other, limits)));
  other = signature;
  other.dense[0].width = 2;
  EXPECT_FALSE(AreAlike(checker, RequestChecker(other, limits)));
  other = signature;
  other.context = {"x"};
  EXPECT_FALSE(AreAlike(checker, RequestChecker(other, limits)));
}

/// Two answers whose comparison takes a while: they differ in their last value alone.
TEST(Comparer, DropsAndCountsPairsBeyondWhatMayWaitAndComparesTheRestBeforeItEnds) {
  TempFolder folder;
  Metrics metrics;
  OpenedModel opened;
  opened.model = std::make_unique<AddModel>(1);
  opened.info.name = "m";
  opened.info.version = "1";
  const auto hosted = std::make_shared<Hosted>(std::move(opened), ModelSettings(), metrics,
                                               [](Request&, const Status&, Message) {});
  const OutputOrder order = std::vector<std::size_t>{0};
  Values long_values(1 << 14, 1);
  const Rows expected = RowsOf({long_values});
  long_values.back() = 2;
  const Rows got = RowsOf({long_values});
  Comparer comparer;
  constexpr int kPairs = 1100;
  for (int i = 0; i < kPairs; ++i) comparer.Compare({expected, got, &order, hosted, nullptr});
  comparer.Close();
  comparer.Close();
  comparer.Compare({expected, got, &order, hosted, nullptr});
  const auto counts = metrics.Snapshots().at(0).shadow;
  EXPECT_EQ(counts[0], 0);
  EXPECT_GE(counts[1], 1024);
  EXPECT_GE(counts[3], 1);
  EXPECT_EQ(counts[1] + counts[3], kPairs + 1);
  hosted->Close();
}

}  // namespace
}  // namespace recsys
