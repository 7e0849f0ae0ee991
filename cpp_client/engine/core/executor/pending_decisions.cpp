#include "engine/core/executor/pending_decisions.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/core/executor/executor.h"

namespace recsys {
namespace {

// How long requests are collected at most before an executor is notified.
constexpr double kLongestWaitS = 200e-6;

constexpr double kAtOnce = -kNever;

thread_local PendingDecisions* of_this_thread = nullptr;

}  // namespace

PendingDecisions::PendingDecisions(Clock clock) : clock_(std::move(clock)) {
  of_this_thread = this;
}

PendingDecisions::~PendingDecisions() { of_this_thread = nullptr; }

PendingDecisions* PendingDecisions::OfThisThread() { return of_this_thread; }

void PendingDecisions::Add(Executor& executor) {
  if (!began_s_) began_s_ = clock_();
  for (Decision& one : pending_) {
    if (one.executor.get() != &executor) continue;
    one.at_s = kAtOnce;
    return;
  }
  Put({executor.servable().shared_from_this(), &executor}, kAtOnce);
}

void PendingDecisions::Put(std::shared_ptr<Executor> executor, double at_s) {
  for (Decision& one : pending_) {
    if (one.executor != executor) continue;
    one.at_s = std::min(one.at_s, at_s);
    return;
  }
  pending_.push_back({std::move(executor), at_s});
}

void PendingDecisions::AfterEvent() {
  if (began_s_ && clock_() - *began_s_ > kLongestWaitS) Decide(false);
}

void PendingDecisions::AfterRound() {
  if (!pending_.empty()) Decide(true);
}

void PendingDecisions::Decide(bool may_run_here) {
  const double now_s = clock_();
  began_s_.reset();
  const auto due = std::partition(pending_.begin(), pending_.end(),
                                  [now_s](const Decision& one) { return one.at_s > now_s; });
  std::move(due, pending_.end(), std::back_inserter(due_));
  pending_.erase(due, pending_.end());
  for (Decision& one : due_) {
    const double at_s = one.executor->Schedule(may_run_here);
    // One batch in the polling thread is enough before it reads again.
    may_run_here = may_run_here && clock_() - now_s < kLongestWaitS / 4;
    if (at_s != kNever) Put(std::move(one.executor), at_s);
  }
  due_.clear();
}

double PendingDecisions::WaitS() const {
  double at_s = kNever;
  for (const Decision& one : pending_) at_s = std::min(at_s, one.at_s);
  return at_s == kNever ? kNever : std::max(at_s - clock_(), 0.0);
}

}  // namespace recsys
