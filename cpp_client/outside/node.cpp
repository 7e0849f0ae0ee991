#include "outside/node.h"

#include <algorithm>

#include "base/log.h"

namespace recsys {
namespace {

constexpr double kFirstPauseS = 0.1;
constexpr double kLongestPauseS = 1.0;

}  // namespace

void Node::Failed(double now_s, const std::string& why) {
  const double before_s = pause_s_.load(std::memory_order_relaxed);
  // Batches that failed together count as one failure.
  if (before_s > 0 && !IsUp(now_s)) return;
  const double pause_s = before_s == 0 ? kFirstPauseS : std::min(2 * before_s, kLongestPauseS);
  pause_s_.store(pause_s, std::memory_order_relaxed);
  down_until_s_.store(now_s + pause_s, std::memory_order_relaxed);
  if (before_s == 0) Log(LogLevel::kWarning, "rows: " + name_ + " " + why);
}

void Node::Answered() {
  if (pause_s_.load(std::memory_order_relaxed) == 0) return;
  if (pause_s_.exchange(0, std::memory_order_relaxed) == 0) return;
  down_until_s_.store(0, std::memory_order_relaxed);
  Log(LogLevel::kInfo, "rows: " + name_ + " answers again");
}

}  // namespace recsys
