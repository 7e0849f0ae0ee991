// A server with more processors than this machine has, in simulated time: polling threads and
// executors share processors and wait for the queue's lock; the policy is the real one. Called by
// benchmarks/server/scaling.py with `name value` pairs, times in microseconds; prints JSON.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/queue/policy.h"

namespace recsys {
namespace {

constexpr double kMicro = 1e-6;
// A batch's rows at most (BatchLimits).
constexpr std::int64_t kMostRows = 512;
// How long requests are collected at most before an executor is notified (PendingDecisions).
constexpr double kLongestTurnS = 200e-6;

struct Load {
  std::map<std::string, double> numbers = {
      {"processors", 2}, {"polling_threads", 1}, {"rows", 1},    {"in_flight", 64},
      {"rate", 0},       {"requests", 20000},    {"read", 5},    {"answer", 2},
      {"fixed", 3},      {"row", 0.2},           {"wake", 20},   {"submit", 0.09},
      {"batch", 0.65},   {"taken", 0.03},        {"network", 50}};
  double of(const char* name) const { return numbers.at(name); }
  double seconds(const char* name) const { return kMicro * of(name); }
};

/// Work that a thread does next; `locked`: while it holds the queue's lock.
struct Phase {
  double left_s = 0;
  bool locked = false;
  std::function<void()> then;
};

struct Thread {
  std::deque<Phase> phases;
  bool is_waiting = false;
  bool is_busy() const { return !phases.empty(); }
};

/// A request, by when it was sent and the polling thread of its connection.
struct Sent {
  double at_s = 0;
  std::size_t poller = 0;
};

class Simulation {
 public:
  explicit Simulation(Load load)
      : load_(std::move(load)),
        rows_(static_cast<std::int64_t>(load_.of("rows"))),
        num_processors_(static_cast<int>(load_.of("processors"))),
        pollers_(static_cast<std::size_t>(load_.of("polling_threads"))),
        executors_(static_cast<std::size_t>(num_processors_)) {
    // As the warm-up does.
    for (const std::int64_t rows : {1, 2, 8, 32, 128, 256}) {
      policy_.costs().Learn({rows, 0}, BatchS(rows));
    }
    if (load_.of("rate") > 0) {
      Arrive();
    } else {
      for (int i = 0; i < static_cast<int>(load_.of("in_flight")); ++i) Send();
    }
  }

  void Run() {
    const auto most = static_cast<std::size_t>(load_.of("requests"));
    // The first fifth is a warm-up.
    while (latencies_.size() < most / 5) Step();
    latencies_.clear();
    busy_s_ = held_s_ = 0;
    const double began_s = now_s_;
    num_batches_ = num_here_ = num_cut_ = 0;
    while (latencies_.size() < most) Step();
    const double seconds = now_s_ - began_s;
    std::sort(latencies_.begin(), latencies_.end());
    const auto at = [this](double share) {
      return 1e3 *
             latencies_[static_cast<std::size_t>(share * static_cast<double>(latencies_.size()))];
    };
    std::printf(
        "{\"requests_per_s\": %.1f, \"p50_ms\": %.4f, \"p99_ms\": %.4f, \"idle\": %.4f, "
        "\"lock\": %.4f, \"batches\": %d, \"here\": %d, \"cut\": %d}\n",
        static_cast<double>(most) / seconds, at(0.5), at(0.99),
        1 - busy_s_ / seconds / num_processors_, held_s_ / seconds, num_batches_, num_here_,
        num_cut_);
  }

 private:
  struct Poller {
    Thread thread;
    std::deque<Sent> arrived, outbox;
    /// Read in this turn, and not yet in the queue.
    std::vector<Sent> read;
    bool looks_again = false;
    double turn_s = 0;
  };
  struct Executor {
    Thread thread;
    bool looks_again = false;
  };
  struct Later {
    double at_s;
    std::function<void()> then;
    bool operator<(const Later& other) const { return at_s > other.at_s; }
  };

  double BatchS(std::int64_t rows) const {
    return load_.seconds("fixed") + load_.seconds("row") * static_cast<double>(rows);
  }
  std::int64_t WaitingRows() const { return static_cast<std::int64_t>(waiting_.size()) * rows_; }

  // Clients: a closed loop sends again at once, an open one at random.
  void Send() {
    const std::size_t poller = num_sent_++ % pollers_.size();
    later_.push({now_s_ + load_.seconds("network"), [this, poller] {
                   pollers_[poller].arrived.push_back({now_s_, poller});
                   Poll(poller);
                 }});
  }
  void Arrive() {
    Send();
    std::exponential_distribution<double> apart(load_.of("rate"));
    later_.push({now_s_ + apart(random_), [this] { Arrive(); }});
  }

  // Time: the threads that have work and no lock to wait for share the processors.
  void Do(Thread* thread, double seconds, bool locked, std::function<void()> then) {
    thread->phases.push_back({seconds, locked, std::move(then)});
    if (thread->phases.size() == 1) Begin(thread);
  }
  void Begin(Thread* thread) {
    if (!thread->phases.front().locked) return;
    thread->is_waiting = holder_ != nullptr;
    if (thread->is_waiting) return lock_line_.push_back(thread);
    holder_ = thread;
  }
  void End(Thread* thread) {
    const Phase ended = std::move(thread->phases.front());
    thread->phases.pop_front();
    if (ended.locked) {
      holder_ = nullptr;
      if (!lock_line_.empty()) {
        holder_ = lock_line_.front();
        lock_line_.pop_front();
        holder_->is_waiting = false;
      }
    }
    const bool has_next = thread->is_busy();
    ended.then();
    if (has_next) Begin(thread);
  }
  void Step() {
    std::vector<Thread*> running;
    for (Poller& one : pollers_) Add(&one.thread, &running);
    for (Executor& one : executors_) Add(&one.thread, &running);
    const double num = static_cast<double>(running.size());
    const double rate = std::min(1.0, num_processors_ / std::max(num, 1.0));
    Thread* next = nullptr;
    for (Thread* const one : running) {
      if (next == nullptr || one->phases.front().left_s < next->phases.front().left_s) next = one;
    }
    double step_s = next == nullptr ? kNever : next->phases.front().left_s / rate;
    if (!later_.empty() && later_.top().at_s - now_s_ < step_s) {
      step_s = std::max(later_.top().at_s - now_s_, 0.0);
      next = nullptr;
    }
    now_s_ += step_s;
    busy_s_ += step_s * rate * num;
    if (holder_ != nullptr) held_s_ += step_s;
    for (Thread* const one : running) one->phases.front().left_s -= step_s * rate;
    if (next != nullptr) return End(next);
    const std::function<void()> then = later_.top().then;
    later_.pop();
    then();
  }
  static void Add(Thread* thread, std::vector<Thread*>* running) {
    if (thread->is_busy() && !thread->is_waiting) running->push_back(thread);
  }

  // Polling threads, as Loop and PendingDecisions.
  void Poll(std::size_t number) {
    Poller& poller = pollers_[number];
    if (poller.thread.is_busy()) return;
    if (!poller.outbox.empty()) {
      const Sent sent = poller.outbox.front();
      poller.outbox.pop_front();
      Do(&poller.thread, load_.seconds("answer"), false, [this, sent, number] {
        latencies_.push_back(now_s_ - sent.at_s);
        if (load_.of("rate") <= 0) Send();
        Poll(number);
      });
    } else if (!poller.arrived.empty() &&
               (poller.read.empty() || now_s_ - poller.turn_s <= kLongestTurnS)) {
      const Sent sent = poller.arrived.front();
      poller.arrived.pop_front();
      Do(&poller.thread, load_.seconds("read"), false, [this, sent, number] {
        Poller& own = pollers_[number];
        if (own.read.empty()) own.turn_s = now_s_;
        own.read.push_back(sent);
        Poll(number);
      });
    } else if (!poller.read.empty()) {
      const std::vector<Sent> read = std::exchange(poller.read, {});
      const auto num = static_cast<std::int64_t>(read.size());
      Do(&poller.thread, load_.seconds("submit") * static_cast<double>(num), true,
         [this, read, num] {
           waiting_.insert(waiting_.end(), read.begin(), read.end());
           policy_.Arrived(now_s_, num);
         });
      Do(&poller.thread, load_.seconds("batch") / 2, true, [this, number] {
        Schedule(number);
        Poll(number);
      });
    }
  }
  BatchPolicy::State State() const {
    BatchPolicy::State state;
    state.now_s = now_s_;
    state.waiting = {WaitingRows(), 0};
    int num_idle = 0;
    for (const Executor& one : executors_) num_idle += one.thread.is_busy() ? 0 : 1;
    state.num_free = std::min(num_idle, std::max(num_processors_ - policy_.num_running(), 0));
    return state;
  }
  void Schedule(std::size_t number) {
    if (waiting_.empty() || is_waking_) return;
    BatchPolicy::State state = State();
    state.may_run_here = policy_.num_running() == 0;
    switch (policy_.Decide(state)) {
      case Act::kRunHere:
        ++num_here_;
        return RunBatch(&pollers_[number].thread, Take(kMostRows), [this, number] {
          if (!waiting_.empty()) Wake();
          Poll(number);
        });
      case Act::kWake:
        return Wake();
      case Act::kLeave:
        return LookAgain(&pollers_[number].looks_again, [this, number] { Schedule(number); });
    }
  }

  /// Calls again when the running batches should be over.
  void LookAgain(bool* looks_again, std::function<void()> then) {
    if (std::exchange(*looks_again, true)) return;
    later_.push({policy_.LooksAgainS(now_s_), [looks_again, then = std::move(then)] {
                   *looks_again = false;
                   then();
                 }});
  }

  // Executors, as Executor.
  void Wake() {
    if (is_waking_) return;
    for (Executor& one : executors_) {
      if (one.thread.is_busy()) continue;
      is_waking_ = true;
      const double woken_s = now_s_;
      return Do(&one.thread, load_.seconds("wake"), false, [this, &one, woken_s] {
        is_waking_ = false;
        policy_.Woke(now_s_ - woken_s);
        GoOn(&one);
      });
    }
  }
  std::vector<Sent> Take(std::int64_t most_rows) {
    const std::int64_t most =
        std::max<std::int64_t>((std::min(most_rows, kMostRows) + rows_ - 1) / rows_, 1);
    const auto num =
        std::min(static_cast<std::ptrdiff_t>(most), static_cast<std::ptrdiff_t>(waiting_.size()));
    std::vector<Sent> batch(waiting_.begin(), waiting_.begin() + num);
    waiting_.erase(waiting_.begin(), waiting_.begin() + num);
    ++num_batches_;
    return batch;
  }
  void GoOn(Executor* executor) {
    if (executor->thread.is_busy() || waiting_.empty()) return;
    if (!policy_.GoesOn(State())) {
      return LookAgain(&executor->looks_again, [this, executor] { GoOn(executor); });
    }
    BatchPolicy::State state = State();
    // The caller is no longer free.
    state.num_free = std::max(state.num_free - 1, 0);
    RunBatch(&executor->thread, Take(policy_.ShareOf(state)), [this, executor] { GoOn(executor); });
  }
  void RunBatch(Thread* thread, std::vector<Sent> batch, std::function<void()> then) {
    const auto rows = static_cast<std::int64_t>(batch.size()) * rows_;
    const double began_s = now_s_;
    const int number = policy_.Began({rows, 0}, began_s, policy_.num_running());
    // First: the thread is not free any more.
    Do(thread, load_.seconds("taken") * static_cast<double>(batch.size()), true, [] {});
    int num_parts = 1;
    if (batch.size() == 1 && waiting_.empty()) {
      BatchPolicy::State state = State();
      state.waiting = {rows, 0};
      num_parts = policy_.NumParts(state);
    }
    if (!waiting_.empty() && policy_.Decide(State()) == Act::kWake) Wake();
    const auto left = std::make_shared<int>(num_parts);
    const auto end = [this, thread, batch, number, rows, num_parts, then] {
      Do(thread, load_.seconds("batch") / 2, true, [this, batch, number, rows, num_parts, then] {
        if (num_parts > 1) {
          policy_.EndedInParts(number, {{{rows / num_parts, 0}, BatchS(rows / num_parts)}}, false);
        } else {
          policy_.Ended(number, now_s_, policy_.num_running() - 1);
        }
        for (const Sent& sent : batch) {
          pollers_[sent.poller].outbox.push_back(sent);
          Poll(sent.poller);
        }
        then();
      });
    };
    if (num_parts > 1) ++num_cut_;
    for (Executor& one : executors_) {
      if (num_parts <= 1 || *left <= 1) break;
      if (one.thread.is_busy()) continue;
      --*left;
      Do(&one.thread, load_.seconds("wake"), false, [] {});
      helpers_.push_back(&one);
    }
    const auto open = std::make_shared<std::size_t>(helpers_.size() + 1);
    const double part_s = BatchS(rows / static_cast<std::int64_t>(*open));
    for (Executor* const one : std::exchange(helpers_, {})) {
      Do(&one->thread, part_s, false, [this, open, end, one] {
        if (--*open == 0) end();
        GoOn(one);
      });
    }
    Do(thread, part_s, false, [open, end] {
      if (--*open == 0) end();
    });
  }

  static constexpr double kNever = 1e30;
  const Load load_;
  const std::int64_t rows_;
  const int num_processors_;
  BatchPolicy policy_;
  std::vector<Poller> pollers_;
  std::vector<Executor> executors_;
  std::vector<Executor*> helpers_;
  std::deque<Sent> waiting_;
  std::deque<Thread*> lock_line_;
  Thread* holder_ = nullptr;
  std::priority_queue<Later> later_;
  std::mt19937_64 random_{1};
  std::size_t num_sent_ = 0;
  double now_s_ = 0, busy_s_ = 0, held_s_ = 0;
  bool is_waking_ = false;
  int num_batches_ = 0, num_here_ = 0, num_cut_ = 0;
  std::vector<double> latencies_;
};

}  // namespace
}  // namespace recsys

int main(int argc, char** argv) {
  recsys::Load load;
  for (int i = 1; i + 1 < argc; i += 2) {
    const auto found = load.numbers.find(argv[i]);
    if (found == load.numbers.end()) {
      std::fprintf(stderr, "recsys-scaling: there is no number %s\n", argv[i]);
      return 2;
    }
    found->second = std::strtod(argv[i + 1], nullptr);
  }
  recsys::Simulation(load).Run();
  return 0;
}
