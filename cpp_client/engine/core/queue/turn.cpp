#include "engine/core/queue/turn.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/core/executor.h"

namespace recsys {
namespace {

// Maximum time for collecting requests before an executor is notified.
constexpr double kLongestTurnS = 200e-6;

thread_local PollingTurn* turn_here = nullptr;

}  // namespace

PollingTurn::PollingTurn(Clock clock) : clock_(std::move(clock)) { turn_here = this; }

PollingTurn::~PollingTurn() { turn_here = nullptr; }

PollingTurn* PollingTurn::Here() { return turn_here; }

void PollingTurn::Hold(std::shared_ptr<Executor> executor) {
  if (held_.empty()) began_s_ = clock_();
  held_.push_back(std::move(executor));
}

void PollingTurn::Seen() {
  if (!held_.empty() && clock_() - began_s_ > kLongestTurnS) Decide(false);
}

void PollingTurn::End() { Decide(true); }

void PollingTurn::Decide(bool may_run_here) {
  const double now_s = clock_();
  std::swap(held_, deciding_);
  const auto is_due = [now_s](const Watched& one) { return one.at_s <= now_s; };
  for (Watched& one : watched_) {
    if (is_due(one)) deciding_.push_back(std::move(one.executor));
  }
  watched_.erase(std::remove_if(watched_.begin(), watched_.end(), is_due), watched_.end());
  for (std::shared_ptr<Executor>& executor : deciding_) {
    const double at_s = executor->Decide(may_run_here);
    // One batch in the polling thread is enough before it reads again.
    may_run_here = may_run_here && clock_() - now_s < kLongestTurnS / 4;
    if (at_s == kNever) continue;
    const auto same = std::find_if(watched_.begin(), watched_.end(),
                                   [&](const Watched& one) { return one.executor == executor; });
    if (same != watched_.end()) {
      same->at_s = at_s;
    } else {
      watched_.push_back({std::move(executor), at_s});
    }
  }
  deciding_.clear();
}

double PollingTurn::WaitS() const {
  if (!held_.empty()) return 0;
  double at_s = kNever;
  for (const Watched& one : watched_) at_s = std::min(at_s, one.at_s);
  return at_s == kNever ? kNever : std::max(at_s - clock_(), 0.0);
}

}  // namespace recsys
