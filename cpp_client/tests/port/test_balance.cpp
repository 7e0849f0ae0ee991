// Which polling threads have the connections, over simulated load.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include "port/polling/balance.h"

namespace recsys::http2 {
namespace {

/// Loops whose connections ask for processor time, window by window.
class World {
 public:
  explicit World(std::size_t num_loops) : balance_(num_loops, {}), loops_(num_loops) {
    balance_.Decide(now_s_, Loads());
  }

  /// A new connection that asks for this share of a processor; returns its loop.
  std::size_t Connect(double share) {
    const std::size_t loop = balance_.LoopForNew(Loads());
    loops_[loop].connections.push_back(share);
    return loop;
  }
  /// Has all connections ask for `factor` times as much.
  void Scale(double factor) {
    for (Simulated& loop : loops_) {
      for (double& share : loop.connections) share *= factor;
    }
  }
  void Run(double seconds) {
    for (const double until_s = now_s_ + seconds; now_s_ < until_s - 1e-9;) {
      now_s_ += BalanceLimits().window_s;
      for (Simulated& loop : loops_) {
        loop.processor_s += std::min(Asked(loop), processor_) * BalanceLimits().window_s;
      }
      if (const auto move = balance_.Decide(now_s_, Loads())) Move(*move);
    }
  }
  /// How many connections each loop has.
  std::vector<std::size_t> Connections() const {
    std::vector<std::size_t> nums;
    for (const Simulated& loop : loops_) nums.push_back(loop.connections.size());
    return nums;
  }
  int num_moves() const { return num_moves_; }
  /// The share of a processor that a loop gets at most.
  void GiveAtMost(double processor) { processor_ = processor; }

 private:
  struct Simulated {
    double processor_s = 0;
    std::vector<double> connections;
  };

  // Several loops need more time for the same calls.
  double Asked(const Simulated& loop) const {
    double sum = 0;
    for (const double share : loop.connections) sum += share;
    const bool is_alone = loop.connections.size() == NumConnections();
    return is_alone ? sum : 1.4 * sum;
  }
  std::size_t NumConnections() const {
    std::size_t sum = 0;
    for (const Simulated& loop : loops_) sum += loop.connections.size();
    return sum;
  }
  std::vector<LoopLoad> Loads() const {
    std::vector<LoopLoad> loads;
    for (const Simulated& loop : loops_) {
      loads.push_back({loop.processor_s, static_cast<std::int64_t>(loop.connections.size())});
    }
    return loads;
  }
  /// As Loop::Move does.
  void Move(const LoopMove& move) {
    std::vector<double>& from = loops_[move.from].connections;
    std::sort(from.begin(), from.end(), std::greater<>());
    double left = 0;
    for (const double share : from) left += move.share * share;
    std::vector<double> kept;
    for (const double share : from) {
      if (move.share < 1 && share > left) {
        kept.push_back(share);
        continue;
      }
      left -= share;
      loops_[move.to].connections.push_back(share);
      ++num_moves_;
    }
    from = kept;
  }

  double now_s_ = 100;
  double processor_ = 1;
  Balance balance_;
  std::vector<Simulated> loops_;
  int num_moves_ = 0;
};

using Nums = std::vector<std::size_t>;

TEST(Balance, ConnectionsWithLittleToDoShareTheFirstLoop) {
  World world(4);
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(world.Connect(0.01), 0U);
    world.Run(0.2);
  }
  world.Run(100);
  EXPECT_EQ(world.Connections(), (Nums{50, 0, 0, 0}));
  EXPECT_EQ(world.num_moves(), 0);
}

TEST(Balance, ANewConnectionGoesToTheFirstLoopThatIsNotBusy) {
  World world(3);
  for (const std::size_t loop : {0U, 1U, 2U}) {
    EXPECT_EQ(world.Connect(0.65), loop);
    world.Run(1);
  }
  EXPECT_EQ(world.num_moves(), 0);
}

TEST(Balance, LoadThatGrowsOnOldConnectionsSpreads) {
  World world(4);
  for (int i = 0; i < 12; ++i) world.Connect(0.01);
  world.Run(1);
  EXPECT_EQ(world.Connections(), (Nums{12, 0, 0, 0}));
  world.Scale(7.5);  // To .9 in all.
  world.Run(1);
  EXPECT_EQ(world.Connections(), (Nums{7, 5, 0, 0}));
  world.Scale(2.5);
  world.Run(10);
  for (const std::size_t num : world.Connections()) EXPECT_GT(num, 0U);
  const int num_moves = world.num_moves();
  world.Run(100);
  EXPECT_EQ(world.num_moves(), num_moves);
}

TEST(Balance, LoadThatComesAtOnceReachesManyLoopsInSeconds) {
  World world(16);
  for (int i = 0; i < 128; ++i) EXPECT_EQ(world.Connect(0.3), 0U);
  world.Run(6);
  for (const std::size_t num : world.Connections()) EXPECT_GT(num, 0U);
}

TEST(Balance, LoopsBecomeOneAfterTheLoadHasFallen) {
  World world(3);
  for (int i = 0; i < 8; ++i) world.Connect(0.24);
  world.Run(10);
  ASSERT_GT(world.Connections()[1], 0U);
  world.Scale(0.1);
  world.Run(1);
  ASSERT_GT(world.Connections()[1], 0U);
  world.Run(10);
  EXPECT_EQ(world.Connections(), (Nums{8, 0, 0}));
}

TEST(Balance, OneHotConnectionStaysAlone) {
  World world(2);
  world.Connect(0.95);
  world.Run(100);
  EXPECT_EQ(world.num_moves(), 0);
  // Those beside it leave, once.
  World crowded(2);
  crowded.Connect(0.001);
  crowded.Connect(0.001);
  crowded.Connect(0.01);
  crowded.Connect(0.9);
  crowded.Run(100);
  EXPECT_EQ(crowded.Connections(), (Nums{1, 3}));
  EXPECT_EQ(crowded.num_moves(), 3);
}

TEST(Balance, WhereProcessorsAreShortNothingSpreads) {
  World world(2);
  world.GiveAtMost(0.55);
  for (int i = 0; i < 8; ++i) world.Connect(0.2);
  world.Run(100);
  EXPECT_EQ(world.Connections(), (Nums{8, 0}));
}

TEST(Balance, LoadThatComesAndGoesMovesSeldom) {
  World world(2);
  for (int i = 0; i < 10; ++i) world.Connect(0.09);
  for (int i = 0; i < 60; ++i) {
    world.Run(5);
    world.Scale(0.1);
    world.Run(5);
    world.Scale(10);
  }
  // Spread once, and joined again only while the wait was shorter than the quiet times.
  EXPECT_LT(world.num_moves(), 40);
}

TEST(Balance, ANewConnectionBesideBusyLoopsGoesToTheLeastBusy) {
  Balance balance(2, {});
  balance.Decide(0, {{0, 1}, {0, 1}});
  balance.Decide(1, {{0.9, 1}, {0.7, 9}});
  EXPECT_EQ(balance.LoopForNew({{0.9, 1}, {0.7, 9}}), 1U);
  balance.Decide(2, {{1.75, 3}, {1.55, 2}});
  EXPECT_EQ(balance.LoopForNew({{1.75, 3}, {1.55, 2}}), 1U);
  EXPECT_EQ(balance.LoopForNew({{1.75, 2}, {1.55, 3}}), 0U);
}

}  // namespace
}  // namespace recsys::http2
