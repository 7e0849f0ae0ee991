#include "engine/core/queue/pending_decisions.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/core/executor.h"

namespace recsys {
namespace {

// How long requests are collected at most before an executor is notified.
constexpr double kLongestWaitS = 200e-6;

thread_local PendingDecisions* of_this_thread = nullptr;

}  // namespace

PendingDecisions::PendingDecisions(Clock clock) : clock_(std::move(clock)) {
  of_this_thread = this;
}

PendingDecisions::~PendingDecisions() { of_this_thread = nullptr; }

PendingDecisions* PendingDecisions::OfThisThread() { return of_this_thread; }

void PendingDecisions::Add(std::shared_ptr<Executor> executor) {
  if (pending_.empty()) began_s_ = clock_();
  pending_.push_back(std::move(executor));
}

void PendingDecisions::AfterEvent() {
  if (!pending_.empty() && clock_() - began_s_ > kLongestWaitS) DecideAll(false);
}

void PendingDecisions::AfterRound() { DecideAll(true); }

void PendingDecisions::DecideAll(bool may_run_here) {
  const double now_s = clock_();
  std::swap(pending_, deciding_);
  const auto is_due = [now_s](const Watched& one) { return one.at_s <= now_s; };
  for (Watched& one : watched_) {
    if (is_due(one)) deciding_.push_back(std::move(one.executor));
  }
  watched_.erase(std::remove_if(watched_.begin(), watched_.end(), is_due), watched_.end());
  for (std::shared_ptr<Executor>& executor : deciding_) {
    const double at_s = executor->Decide(may_run_here);
    // One batch in the polling thread is enough before it reads again.
    may_run_here = may_run_here && clock_() - now_s < kLongestWaitS / 4;
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

double PendingDecisions::WaitS() const {
  if (!pending_.empty()) return 0;
  double at_s = kNever;
  for (const Watched& one : watched_) at_s = std::min(at_s, one.at_s);
  return at_s == kNever ? kNever : std::max(at_s - clock_(), 0.0);
}

}  // namespace recsys
