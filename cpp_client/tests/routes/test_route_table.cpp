// Which version answers, and which one computes in the shadow.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <utility>

#include "engine/routes/route_table.h"
#include "recsys/error.h"
#include "tests/core/fakes.h"

namespace recsys {
namespace {

using Pair = std::pair<std::string, std::string>;

class RouteTest : public testing::Test {
 protected:
  RouteTest() {
    for (const char* version : {"1", "2", "3"}) {
      versions_.push_back(HostSum([](Request&, const Status&, Message) {}, {}, version).servable);
    }
  }

  void Publish(const RouteSpec& spec) {
    std::shared_ptr<const Shadow> shadow;
    for (const auto& version : versions_) {
      if (version->version() != spec.shadow) continue;
      shadow = std::make_shared<const Shadow>(version, versions_,
                                              [](const ShadowEvent&) { return true; });
    }
    routes_.Publish(std::make_shared<const RouteTable>(spec, versions_, shadow));
  }
  static RouteSpec Spec(const std::string& serving, const std::string& canary = "",
                        double canary_share = 0, const std::string& shadow = "",
                        double shadow_share = 0) {
    RouteSpec spec;
    spec.model = "sum";
    spec.serving = serving;
    spec.canary = canary;
    spec.canary_share = canary_share;
    spec.shadow = shadow;
    spec.shadow_share = shadow_share;
    spec.is_only = true;
    return spec;
  }
  /// The versions that answer and that compute in the shadow.
  Pair Picked(const RouteQuery& query) const {
    const Route route = routes_.Find(query);
    return {route.primary->version(),
            route.shadow == nullptr ? "" : route.shadow->servable()->version()};
  }
  Pair Drawn(double draw) const { return Picked({"sum", "", false, draw}); }
  std::string Refusal(const RouteQuery& query, ErrorKind kind) const {
    try {
      routes_.Find(query);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind) << error.what();
      return error.what();
    }
    ADD_FAILURE() << "nothing was thrown";
    return "";
  }

  std::vector<std::shared_ptr<Servable>> versions_;
  Routes routes_;
};

TEST_F(RouteTest, TheCanaryTakesTheLowestDrawsAndTheShadowTheHighest) {
  Publish(Spec("1", "2", 0.1, "3", 0.2));
  EXPECT_EQ(Drawn(0.0), Pair("2", ""));
  EXPECT_EQ(Drawn(0.0999), Pair("2", ""));
  EXPECT_EQ(Drawn(0.1), Pair("1", ""));
  EXPECT_EQ(Drawn(0.7999), Pair("1", ""));
  EXPECT_EQ(Drawn(0.8), Pair("1", "3"));
  EXPECT_EQ(Drawn(0.9999), Pair("1", "3"));
}

TEST_F(RouteTest, AllRequestsCanBeACanarysAndHaveAShadow) {
  Publish(Spec("1", "2", 1, "3", 1));
  for (const double draw : {0.0, 0.5, 1 - 0x1p-53}) EXPECT_EQ(Drawn(draw), Pair("2", "3"));
}

TEST_F(RouteTest, AVersionIsNotItsOwnShadow) {
  Publish(Spec("1", "2", 1, "2", 1));
  EXPECT_EQ(Drawn(0.5), Pair("2", ""));
}

TEST_F(RouteTest, ANamedVersionGetsNoShadowUnlessTheRoutingDrewIt) {
  Publish(Spec("1", "2", 0.5, "3", 1));
  EXPECT_EQ(Picked({"sum", "1", false, 0.9}), Pair("1", ""));
  EXPECT_EQ(Picked({"sum", "1", true, 0.9}), Pair("1", "3"));
  EXPECT_EQ(Picked({"sum", "3", true, 0.9}), Pair("3", ""));
}

TEST_F(RouteTest, SharesAreKeptWhoeverDrewTheVersion) {
  Publish(Spec("1", "2", 0.05, "3", 0.3));
  std::mt19937 random(1);
  std::uniform_real_distribution<double> draw(0, 1);
  std::map<Pair, int> counts, drawn;
  for (int i = 0; i < 20'000; ++i) {
    ++counts[Drawn(draw(random))];
    const std::string version = draw(random) < 0.05 ? "2" : "1";
    ++drawn[Picked({"sum", version, true, draw(random)})];
  }
  for (const auto& all : {counts, drawn}) {
    EXPECT_EQ(all.size(), 3U);
    EXPECT_NEAR(all.at({"2", ""}), 1000, 200);
    EXPECT_NEAR(all.at({"1", "3"}), 6000, 300);
  }
}

TEST_F(RouteTest, AKeyHasTheDrawThatPythonGivesIt) {
  // keyed_draw of serve/engine/routes.py: of 0, 7 and the smallest ID.
  const std::pair<std::int64_t, double> draws[] = {
      {0, 0x1.5d86a43aa56a0p-6},
      {7, 0x1.057d43b3b5764p-3},
      {std::numeric_limits<std::int64_t>::min(), 0x1.4cbb3de0d600cp-2}};
  for (const auto& [key, draw] : draws) {
    for (const auto& [share, expected] : {std::pair(draw, "1"), {std::nextafter(draw, 1), "2"}}) {
      RouteSpec spec = Spec("1", "2", share);
      spec.key_feature = "user";
      Publish(spec);
      for (const double random : {0.0, 0.999}) {
        EXPECT_EQ(Picked({"sum", "", false, random, key}), Pair(expected, "")) << key;
      }
    }
  }
}

TEST_F(RouteTest, ARequestWithoutItsKeyGetsTheVersionThatServes) {
  RouteSpec spec = Spec("1", "2", 0.9, "3", 0.05);
  spec.key_feature = "user";
  Publish(spec);
  EXPECT_EQ(routes_.Find({"sum", ""}).key_feature, "user");
  EXPECT_EQ(routes_.Find({"sum", "", false, 0, 7}).key_feature, "");
  EXPECT_EQ(routes_.Find({"sum", "2"}).key_feature, "");
  EXPECT_EQ(Drawn(0.0), Pair("1", ""));
  EXPECT_EQ(Drawn(0.49), Pair("1", ""));
  EXPECT_EQ(Drawn(0.51), Pair("1", "3"));
  spec.canary_share = 1;
  Publish(spec);
  EXPECT_EQ(Drawn(0.5).first, "1");
}

TEST_F(RouteTest, KnowsTheHeaderOfEachModel) {
  EXPECT_EQ(routes_.KeyHeader("sum"), "");
  RouteSpec spec = Spec("1", "2", 0.5);
  Publish(spec);
  EXPECT_EQ(routes_.KeyHeader("sum"), "");
  spec.key_header = "x-user";
  Publish(spec);
  for (const char* model : {"sum", ""}) EXPECT_EQ(routes_.KeyHeader(model), "x-user");
  EXPECT_EQ(routes_.KeyHeader("other"), "");
  EXPECT_EQ(routes_.Find({"sum", ""}).key_feature, "");
}

TEST_F(RouteTest, WhatCannotBeAnsweredIsRefusedWithTheReason) {
  EXPECT_EQ(Refusal({"", "", false, 0}, ErrorKind::kNotReady),
            "no model is ready yet; try again later");
  RouteSpec spec = Spec("");
  spec.loading = {"4"};
  Publish(spec);
  EXPECT_EQ(Refusal({"", "", false, 0}, ErrorKind::kNotReady),
            "model 'sum' has no version that is ready; try again later");
  EXPECT_EQ(Refusal({"sum", "4", false, 0}, ErrorKind::kNotReady),
            "version '4' of model 'sum' is being loaded; try again later");
  EXPECT_EQ(Refusal({"sum", "9", false, 0}, ErrorKind::kModelNotFound),
            "version: got '9' of model 'sum', expected one that is loaded, or nothing for the one "
            "that serves");
  EXPECT_EQ(Refusal({"other", "", false, 0}, ErrorKind::kModelNotFound),
            "model: got 'other', expected 'sum' (or nothing: there is only one)");
  spec.serving = "4";
  Publish(spec);
  EXPECT_EQ(Refusal({"sum", "", false, 0}, ErrorKind::kNotReady),
            "version '4' of model 'sum' is being loaded; try again later");
  spec.loading = {};
  Publish(spec);
  EXPECT_EQ(Refusal({"sum", "", false, 0}, ErrorKind::kNotReady),
            "model 'sum' is pinned to version '4', which is not loaded; load it, or route the "
            "model to another version");
  spec.is_unloaded = true;
  Publish(spec);
  EXPECT_EQ(Refusal({"", "", false, 0}, ErrorKind::kModelNotFound),
            "model: got 'sum', which was unloaded, expected one that is loaded");
  spec.model = "second";
  spec.is_only = false;
  Publish(spec);
  spec.model = "sum";
  Publish(spec);
  EXPECT_EQ(Refusal({"", "", false, 0}, ErrorKind::kModelNotFound),
            "model: got '', expected one of 'second', 'sum'");
  routes_.Withdraw("sum");
  routes_.Withdraw("second");
  EXPECT_EQ(Refusal({"", "", false, 0}, ErrorKind::kModelNotFound),
            "model: got '', but there is none");
}

TEST_F(RouteTest, AWrongTableIsRefusedAndThePublishedOneStays) {
  Publish(Spec("1"));
  for (const RouteSpec& wrong :
       {Spec("1", "2", 1.5), Spec("1", "", 0.5), Spec("1", "", 0, "3", -1)}) {
    EXPECT_THROW(Publish(wrong), Error);
  }
  RouteSpec nameless = Spec("1");
  nameless.model.clear();
  EXPECT_THROW(Publish(nameless), Error);
  EXPECT_EQ(Drawn(0.5), Pair("1", ""));
}

}  // namespace
}  // namespace recsys
