#include "tests/core/queue/policy_simulator.h"

#include <algorithm>
#include <limits>

namespace recsys {
namespace {

constexpr std::int64_t kMostRows = 1024;

/// A thread: works on one thing at a time; all that work share the processors.
struct Thread {
  double left_s = 0;
  std::function<void()> then;
  bool is_busy() const { return then != nullptr; }
};

class Simulation {
 public:
  Simulation(const SimulatedLoad& load, int fixed_executors)
      : load_(load),
        fixed_(fixed_executors),
        executors_(static_cast<std::size_t>(fixed_ > 0 ? fixed_ : load.num_processors)) {
    // As the warm-up does.
    for (const std::int64_t rows : {1, 2, 8, 32, 128}) {
      policy_.costs().Learn({rows, 0}, BatchS(rows));
    }
    for (int i = 0; i < load.in_flight; ++i) answers_.push_back(0.0);
  }

  SimulatedRun Run(double seconds) {
    while (now_s_ < seconds) Step();
    run_.requests_per_s = num_answered_ / seconds;
    run_.mean_latency_s = sum_latency_s_ / std::max(num_answered_, 1.0);
    return run_;
  }

 private:
  struct Executor {
    Thread thread;
    std::vector<double> batch;
    int number = 0;
    bool is_waking = false;
  };

  double BatchS(std::int64_t rows) const {
    return load_.costs.fixed_s + load_.costs.per_row_s * static_cast<double>(rows);
  }

  void Step() {
    StartSender();
    StartPoller();
    std::vector<Thread*> busy;
    if (sender_.is_busy()) busy.push_back(&sender_);
    if (poller_.is_busy()) busy.push_back(&poller_);
    for (Executor& one : executors_) {
      if (one.thread.is_busy()) busy.push_back(&one.thread);
    }
    const double rate =
        std::min(1.0, static_cast<double>(load_.num_processors) / static_cast<double>(busy.size()));
    Thread* next = nullptr;
    for (Thread* const one : busy) {
      if (next == nullptr || one->left_s < next->left_s) next = one;
    }
    const double step_s = next->left_s;
    now_s_ += step_s / rate;
    for (Thread* const one : busy) one->left_s -= step_s;
    const std::function<void()> then = std::move(next->then);
    next->then = nullptr;
    then();
  }

  void StartSender() {
    if (sender_.is_busy() || answers_.empty()) return;
    const double sent_s = answers_.front();
    answers_.pop_front();
    if (sent_s > 0) {
      ++num_answered_;
      sum_latency_s_ += now_s_ - sent_s;
    }
    sender_ = {load_.costs.send_s, [this] { arrived_.push_back(now_s_); }};
  }

  void StartPoller() {
    if (poller_.is_busy()) return;
    if (!outbox_.empty()) {
      poller_ = {load_.costs.answer_s,
                 [this, sent_s = outbox_.front()] { answers_.push_back(sent_s); }};
      outbox_.pop_front();
    } else if (!arrived_.empty()) {
      poller_ = {load_.costs.read_s, [this, sent_s = arrived_.front()] {
                   if (waiting_.empty()) turn_s_ = now_s_;
                   waiting_.push_back(sent_s);
                   policy_.Arrived(now_s_);
                   is_held_ = true;
                   if (now_s_ - turn_s_ > 200e-6) EndTurn(false);
                 }};
      arrived_.pop_front();
    } else if (is_held_) {
      EndTurn(true);
    }
  }

  std::int64_t WaitingRows() const {
    return static_cast<std::int64_t>(waiting_.size()) * load_.rows;
  }

  void EndTurn(bool may_run_here) {
    is_held_ = false;
    if (waiting_.empty()) return;
    const auto is_free = [](const Executor& one) { return !one.thread.is_busy(); };
    const auto free = std::find_if(executors_.begin(), executors_.end(), is_free);
    const bool is_waking = std::any_of(executors_.begin(), executors_.end(),
                                       [](const Executor& one) { return one.is_waking; });
    if (fixed_ > 0) {
      if (free != executors_.end()) Wake(&*free);
      return;
    }
    if (is_waking) return;
    BatchPolicy::State state;
    state.now_s = now_s_;
    state.waiting = {WaitingRows(), 0};
    state.may_run_here = may_run_here && policy_.num_running() == 0;
    state.num_free = NumFree();
    switch (policy_.Decide(state)) {
      case Act::kRunHere:
        RunHere();
        break;
      case Act::kWake:
        Wake(&*free);
        break;
      case Act::kLeave:
        break;
    }
  }

  int NumFree() const {
    return static_cast<int>(
        std::count_if(executors_.begin(), executors_.end(),
                      [](const Executor& one) { return !one.thread.is_busy(); }));
  }

  std::vector<double> Take(std::int64_t most_rows = kMostRows) {
    most_rows = std::min(most_rows, kMostRows);
    const auto num = static_cast<std::ptrdiff_t>(std::min<std::int64_t>(
        static_cast<std::int64_t>(waiting_.size()),
        std::max<std::int64_t>((most_rows + load_.rows - 1) / load_.rows, 1)));
    std::vector<double> batch(waiting_.begin(), waiting_.begin() + num);
    waiting_.erase(waiting_.begin(), waiting_.begin() + num);
    ++run_.num_batches;
    return batch;
  }

  void RunHere() {
    ++run_.num_here;
    const std::vector<double> batch = Take();
    const auto rows = static_cast<std::int64_t>(batch.size()) * load_.rows;
    const int number = policy_.Began({rows, 0}, now_s_, 0);
    poller_ = {BatchS(rows), [this, batch, number] {
                 policy_.Ended(number, now_s_, 0);
                 outbox_.insert(outbox_.end(), batch.begin(), batch.end());
               }};
  }

  void Wake(Executor* executor) {
    executor->is_waking = true;
    const double woken_s = now_s_;
    executor->thread = {load_.costs.wake_s, [this, executor, woken_s] {
                          executor->is_waking = false;
                          policy_.Woke(now_s_ - woken_s);
                          GoOn(executor);
                        }};
  }

  void GoOn(Executor* executor) {
    if (waiting_.empty()) return;
    BatchPolicy::State state;
    state.now_s = now_s_;
    state.waiting = {WaitingRows(), 0};
    if (fixed_ == 0 && !policy_.GoesOn(state)) return;
    // The executor itself is no longer free.
    executor->thread.then = [] {};
    state.num_free = NumFree();
    executor->batch = Take(fixed_ == 0 ? policy_.ShareOf(state) : kMostRows);
    const auto rows = static_cast<std::int64_t>(executor->batch.size()) * load_.rows;
    executor->number = policy_.Began({rows, 0}, now_s_, policy_.num_running());
    if (!waiting_.empty()) EndTurn(false);
    run_.most_executors = std::max(run_.most_executors, policy_.num_running());
    executor->thread = {BatchS(rows), [this, executor] {
                          policy_.Ended(executor->number, now_s_, policy_.num_running() - 1);
                          outbox_.insert(outbox_.end(), executor->batch.begin(),
                                         executor->batch.end());
                          GoOn(executor);
                        }};
  }

  const SimulatedLoad load_;
  const int fixed_;
  double now_s_ = 0;
  BatchPolicy policy_;
  Thread sender_, poller_;
  std::vector<Executor> executors_;
  /// When they were sent: answers on their way back, requests in the socket, in the queue; and
  /// answers that the polling thread has to send.
  std::deque<double> answers_, arrived_, waiting_, outbox_;
  bool is_held_ = false;
  double turn_s_ = 0;
  double num_answered_ = 0;
  double sum_latency_s_ = 0;
  SimulatedRun run_;
};

}  // namespace

SimulatedRun Simulate(const SimulatedLoad& load, int fixed_executors, double seconds) {
  return Simulation(load, fixed_executors).Run(seconds);
}

}  // namespace recsys
