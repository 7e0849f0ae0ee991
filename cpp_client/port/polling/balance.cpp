#include "port/polling/balance.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace recsys::http2 {
namespace {

// Windows after a move before those count in which its loops are busy.
constexpr int kSettleWindows = 4;
// Difference of two loops' shares from which one hands connections to the other.
constexpr double kLeastGap = 0.3;
// Loops that were joined and must spread again within so many times the wait were joined too soon:
// the next wait is twice as long, up to this.
constexpr double kTooSoon = 5;
constexpr double kLongestJoinAfterS = 60;
// Shares that differ by less count as equal for a new connection.
constexpr double kShareStep = 0.1;

}  // namespace

Balance::Balance(std::size_t num_loops, BalanceLimits limits)
    : limits_(limits), loops_(num_loops), join_after_s_(limits.join_after_s) {}

void Balance::Measure(double now_s, const std::vector<LoopLoad>& loads) {
  const double window_s = now_s - measured_s_;
  for (std::size_t i = 0; i < loops_.size(); ++i) {
    Seen& seen = loops_[i];
    const double used_s = loads[i].processor_s - seen.processor_s;
    seen.processor_s = loads[i].processor_s;
    seen.share = has_measured_ && window_s > 0 ? std::max(used_s / window_s, 0.0) : 0;
    const bool is_hot = seen.share >= limits_.spread_at;
    seen.num_hot = is_hot || seen.num_hot < 0 ? seen.num_hot + 1 : 0;
  }
  has_measured_ = true;
  measured_s_ = now_s;
  next_s_ = now_s + limits_.window_s;
}

std::optional<LoopMove> Balance::Decide(double now_s, const std::vector<LoopLoad>& loads) {
  Measure(now_s, loads);
  std::optional<LoopMove> move = Spread(now_s, loads);
  if (!move) move = Join(now_s, loads);
  return move;
}

std::optional<LoopMove> Balance::Spread(double now_s, const std::vector<LoopLoad>& loads) {
  std::optional<std::size_t> from;
  for (std::size_t i = 0; i < loops_.size(); ++i) {
    if (loops_[i].num_hot < limits_.num_spread_windows || loads[i].num_connections < 2) continue;
    if (!from || loops_[i].share > loops_[*from].share) from = i;
  }
  if (!from) return std::nullopt;
  const double share = loops_[*from].share;
  for (std::size_t to = 0; to < loops_.size(); ++to) {
    const double gap = share - loops_[to].share;
    if (gap < kLeastGap || loops_[to].share >= limits_.take_below) continue;
    join_after_s_ = now_s - joined_s_ < kTooSoon * join_after_s_
                        ? std::min(2 * join_after_s_, kLongestJoinAfterS)
                        : limits_.join_after_s;
    loops_[*from].num_hot = loops_[to].num_hot = -kSettleWindows;
    quiet_since_s_ = kNever;
    return LoopMove{*from, to, gap / 2 / share};
  }
  return std::nullopt;
}

std::optional<LoopMove> Balance::Join(double now_s, const std::vector<LoopLoad>& loads) {
  std::size_t from = loops_.size() - 1;
  while (from > 0 && loads[from].num_connections == 0) --from;
  std::size_t to = 0;
  while (to < from && loops_[to].share + loops_[from].share >= limits_.join_below) ++to;
  if (to == from) {
    quiet_since_s_ = kNever;
    return std::nullopt;
  }
  quiet_since_s_ = std::min(quiet_since_s_, now_s);
  if (now_s - quiet_since_s_ < join_after_s_) return std::nullopt;
  joined_s_ = now_s;
  return LoopMove{from, to, 1};
}

std::size_t Balance::LoopForNew(const std::vector<LoopLoad>& loads) const {
  for (std::size_t i = 0; i < loops_.size(); ++i) {
    if (loops_[i].share < limits_.take_below) return i;
  }
  const auto rank = [&](std::size_t i) {
    return std::make_tuple(std::floor(loops_[i].share / kShareStep), loads[i].num_connections);
  };
  std::size_t least = 0;
  for (std::size_t i = 1; i < loops_.size(); ++i) {
    if (rank(i) < rank(least)) least = i;
  }
  return least;
}

}  // namespace recsys::http2
