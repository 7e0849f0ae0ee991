// Which version answers: the policy, draw by draw and against its shares.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/models/routing.h"

namespace recsys {
namespace {

using Pair = std::pair<std::string, std::string>;

Routing Make(const std::string& serve, const std::string& canary = "", double canary_percent = 0,
             const std::string& shadow = "", double shadow_percent = 0) {
  return {serve, canary, canary_percent, shadow, shadow_percent};
}

Pair Picked(const Plan& plan, double draw) {
  const Plan::Choice choice = plan.Pick(draw);
  return {choice.primary, choice.has_shadow ? plan.shadow : ""};
}

TEST(Routing, ByDefaultTheNewestVersionServes) {
  EXPECT_EQ(MakePlan({}, {"2", "10", "9"}).serving, "10");
  EXPECT_TRUE(MakePlan({}, {}) == Plan());
}

TEST(Routing, APinnedVersionServesWhateverElseIsThere) {
  EXPECT_EQ(MakePlan(Make("2"), {"1", "2", "3"}).serving, "2");
  EXPECT_EQ(MakePlan(Make("2"), {"2"}).serving, "2");
}

TEST(Routing, NothingTakesThePlaceOfAPinnedVersion) {
  EXPECT_EQ(MakePlan(Make("2"), {"1", "3"}).serving, "");
  const Plan plan = MakePlan(Make("2", "3", 10), {"1", "3"});
  EXPECT_EQ(Picked(plan, 0.05), Pair("3", ""));
  EXPECT_EQ(Picked(plan, 0.5), Pair("", ""));
}

TEST(Routing, CanaryAndShadowAreNotWhatLatestMeans) {
  EXPECT_EQ(MakePlan(Make("latest", "4", 1, "3", 1), {"1", "2", "3", "4"}).serving, "2");
}

TEST(Routing, ACanaryThatIsAloneAnswersAllAndAShadowNothing) {
  EXPECT_EQ(Picked(MakePlan(Make("latest", "4", 1), {"4"}), 0.5), Pair("4", ""));
  EXPECT_EQ(Picked(MakePlan(Make("latest", "", 0, "4", 100), {"4"}), 0.5), Pair("", "4"));
}

TEST(Routing, VersionsThatAreNotReadyAreLeftOut) {
  Plan expected;
  expected.serving = "1";
  EXPECT_TRUE(MakePlan(Make("1", "2", 50, "3", 50), {"1"}) == expected);
}

TEST(Routing, TheCanaryTakesTheLowestDrawsAndTheShadowTheHighest) {
  const Plan plan = MakePlan(Make("1", "2", 10, "3", 20), {"1", "2", "3"});
  EXPECT_EQ(Picked(plan, 0.0), Pair("2", ""));
  EXPECT_EQ(Picked(plan, 0.0999), Pair("2", ""));
  EXPECT_EQ(Picked(plan, 0.1), Pair("1", ""));
  EXPECT_EQ(Picked(plan, 0.7999), Pair("1", ""));
  EXPECT_EQ(Picked(plan, 0.8), Pair("1", "3"));
  EXPECT_EQ(Picked(plan, 0.9999), Pair("1", "3"));
}

TEST(Routing, AllRequestsCanBeACanarysAndHaveAShadow) {
  const Plan plan = MakePlan(Make("1", "2", 100, "3", 100), {"1", "2", "3"});
  for (const double draw : {0.0, 0.5, 1 - 0x1p-53}) EXPECT_EQ(Picked(plan, draw), Pair("2", "3"));
}

TEST(Routing, AVersionIsNotItsOwnShadow) {
  EXPECT_EQ(Picked(MakePlan(Make("1", "2", 100, "2", 100), {"1", "2"}), 0.5), Pair("2", ""));
}

TEST(Routing, SharesAreKept) {
  const Plan plan = MakePlan(Make("1", "2", 5, "3", 30), {"1", "2", "3"});
  std::mt19937 random(1);
  std::uniform_real_distribution<double> draw(0, 1);
  std::map<Pair, int> counts;
  for (int i = 0; i < 20'000; ++i) ++counts[Picked(plan, draw(random))];
  EXPECT_EQ(counts.size(), 3U);
  EXPECT_NEAR((counts[{"2", ""}]), 1000, 200);
  EXPECT_NEAR((counts[{"1", "3"}]), 6000, 300);
}

TEST(Routing, OnlyVersionsThatAreReadyArePicked) {
  const std::vector<std::string> versions = {"", "1", "2", "3", "10"};
  std::mt19937 random(2);
  const auto any = [&] { return versions[random() % versions.size()]; };
  for (int i = 0; i < 20'000; ++i) {
    const std::string serve = random() % 2 != 0 ? "latest" : versions[1 + random() % 4];
    std::string canary = any(), shadow = any();
    if (canary == serve) canary.clear();
    if (shadow == serve) shadow.clear();
    std::set<std::string> ready;
    for (const std::string& version : versions) {
      if (!version.empty() && random() % 2 != 0) ready.insert(version);
    }
    const Plan plan = MakePlan(
        Make(serve, canary, canary.empty() ? 0 : 50, shadow, shadow.empty() ? 0 : 50), ready);
    const auto [primary, twin] = Picked(plan, static_cast<double>(random() % 1000) / 1000);
    EXPECT_TRUE(primary.empty() || ready.count(primary) > 0);
    EXPECT_TRUE(twin.empty() || (ready.count(twin) > 0 && twin != primary));
    std::set<std::string> others = ready;
    others.erase(canary);
    others.erase(shadow);
    if (ready.count(serve) > 0 || (serve == "latest" && !others.empty())) {
      EXPECT_NE(primary, "");
    }
  }
}

TEST(Routing, VersionsAreOrderedByNumberAndNamesComeBefore) {
  std::vector<std::string> versions = {"10",   "9", "1",
                                       "ab12", "a", "123456789012345678901234567890"};
  std::sort(versions.begin(), versions.end(), IsOlder);
  EXPECT_EQ(versions, (std::vector<std::string>{"a", "ab12", "1", "9", "10",
                                                "123456789012345678901234567890"}));
  EXPECT_EQ(Newest({}), "");
}

}  // namespace
}  // namespace recsys
