#include "engine/core/executor/pending_decisions.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/core/executor/executor.h"
#include "engine/core/gateway.h"

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

PendingDecisions::~PendingDecisions() {
  // The end of a call may begin another one.
  while (!read_.empty()) JoinAll();
  for (const Decision& one : pending_) one.executor->Schedule(false);
  of_this_thread = nullptr;
}

PendingDecisions* PendingDecisions::OfThisThread() { return of_this_thread; }

void PendingDecisions::Join(std::shared_ptr<Request> request) {
  if (!began_s_) began_s_ = clock_();
  // Now, where the request can still be refused if there is no memory.
  if (refused_.capacity() <= read_.size()) refused_.reserve(2 * read_.size() + 16);
  read_.push_back(std::move(request));
}

void PendingDecisions::JoinAll() {
  joining_.swap(read_);
  for (auto first = joining_.begin(); first != joining_.end();) {
    Executor& executor = (*first)->servable->executor();
    const auto end = std::stable_partition(first, joining_.end(), [&](const auto& request) {
      return &request->servable->executor() == &executor;
    });
    const auto num = static_cast<std::size_t>(end - first);
    executor.SubmitAll({&*first, num}, &refused_);
    auto refused = refused_.begin();
    for (; first != end; ++first) {
      if (refused != refused_.end() && refused->request == *first) {
        (*first)->counted_by->NotJoined(*refused++);
      } else {
        (*first)->counted_by->Joined(**first);
      }
    }
    refused_.clear();
  }
  joining_.clear();
}

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
  if (!read_.empty() || !pending_.empty()) Decide(true);
}

void PendingDecisions::Decide(bool may_run_here) {
  if (!read_.empty()) JoinAll();
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
  if (!read_.empty()) return 0;
  double at_s = kNever;
  for (const Decision& one : pending_) at_s = std::min(at_s, one.at_s);
  return at_s == kNever ? kNever : std::max(at_s - clock_(), 0.0);
}

}  // namespace recsys
