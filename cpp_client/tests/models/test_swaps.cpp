// Swaps at full load: no request is lost, refused or answered by a mixture of versions.

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/models/world.h"

namespace recsys {
namespace {

constexpr int kThreads = 4;
constexpr int kSwaps = 20;
constexpr int kRequests = 10'000;

struct Seen {
  int num_requests = 0;
  std::set<std::string> versions;
  std::set<std::string> wrong;
};

/// Asks until all swaps are done, and often enough.
Seen AskMany(World& world, const std::atomic<bool>& is_done) {
  Seen seen;
  for (int i = 0; i < kRequests / kThreads || !is_done; ++i) {
    const auto x = static_cast<float>(i % 64);
    const Answer answer = world.Ask(x);
    if (!answer.status.ok()) {
      seen.wrong.insert(answer.status.text);
    } else if (answer.y != std::vector<float>{x + 100 * std::stof(answer.version)}) {
      seen.wrong.insert("a wrong answer of " + answer.version);
    }
    seen.versions.insert(answer.version);
    ++seen.num_requests;
  }
  return seen;
}

void ExpectAllRight(World& world, const std::function<void(int)>& swap) {
  std::atomic<bool> is_done{false};
  std::vector<Seen> seen(kThreads);
  std::vector<std::thread> threads;
  for (Seen& one : seen) threads.emplace_back([&] { one = AskMany(world, is_done); });
  for (int version = 2; version <= 1 + kSwaps; ++version) swap(version);
  is_done = true;
  for (std::thread& thread : threads) thread.join();
  int num_requests = 0;
  std::set<std::string> versions;
  for (const Seen& one : seen) {
    EXPECT_EQ(one.wrong, std::set<std::string>{});
    num_requests += one.num_requests;
    versions.insert(one.versions.begin(), one.versions.end());
  }
  EXPECT_GE(num_requests, kRequests);
  EXPECT_GE(versions.size(), 3U);
  EXPECT_EQ(world.metrics().Outcomes().at("ok"), num_requests);
}

TEST(Swaps, TenThousandRequestsAcrossTwentyNewVersionsNeitherFailNorMix) {
  HeardLog log;
  ModelSettings settings;
  settings.keep_previous = false;
  World world(settings);
  world.Add("1");
  world.manager().Rescan();
  ExpectAllRight(world, [&](int version) {
    world.Add(std::to_string(version));
    EXPECT_EQ(world.manager().Load("small").state, ModelState::kReady);
    world.Remove("small/" + std::to_string(version - 1));
  });
  EXPECT_EQ(world.Serving(), "21");
  const auto outcomes = world.metrics().Outcomes();
  EXPECT_EQ(outcomes.at("accepted"), outcomes.at("ok"));
}

TEST(Swaps, TenThousandRequestsAcrossRollbacksWithACanaryAndAShadowNeitherFailNorMix) {
  HeardLog log;
  World world;
  for (const char* version : {"1", "2", "3"}) world.Add(version);
  world.manager().Rescan();
  ExpectAllRight(world, [&](int turn) {
    const bool is_even = turn % 2 == 0;
    world.manager().SetRouting("small", {is_even ? "1" : "2", is_even ? "2" : "1", 30, "3", 50});
    if (turn % 4 == 0) world.manager().Rollback("small");
    if (turn % 5 == 0) world.manager().Unload("small", "3");
  });
}

}  // namespace
}  // namespace recsys
