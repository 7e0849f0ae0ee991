#include "port/polling/loops.h"

#include <algorithm>
#include <future>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "port/polling/listener.h"

namespace recsys::http2 {
namespace {

/// Has a loop run a task. The future is ready once it has, with what it has thrown.
std::future<void> RunIn(Loop& loop, std::function<void()> function) {
  auto task = std::make_shared<std::packaged_task<void()>>(std::move(function));
  std::future<void> done = task->get_future();
  // A loop that has ended drops it, which makes the future ready too.
  loop.outbox()->Run([task](Loop&) { (*task)(); });
  return done;
}

/// Has all loops run a function, and returns once they have.
void RunInAll(const std::vector<std::unique_ptr<Loop>>& loops,
              const std::function<void(Loop&)>& function) {
  std::vector<std::future<void>> done;
  done.reserve(loops.size());
  for (const auto& loop : loops) {
    done.push_back(RunIn(*loop, [&function, &loop = *loop] { function(loop); }));
  }
  for (const std::future<void>& one : done) one.wait();
}

}  // namespace

Loops::Loops(int num_threads, std::function<std::unique_ptr<DeferredWork>()> make_deferred_work,
             BalanceLimits limits)
    : balance_(static_cast<std::size_t>(std::max(num_threads, 1)), limits) {
  if (!make_deferred_work) {
    make_deferred_work = [] { return std::make_unique<DeferredWork>(); };
  }
  for (int i = 0; i < std::max(num_threads, 1); ++i) {
    loops_.push_back(std::make_unique<Loop>(make_deferred_work));
    if (num_threads > 1) loops_.back()->LookWith([this](double now_s) { return Look(now_s); });
  }
  for (std::size_t i = 0; i < loops_.size(); ++i) loops_[i]->Start("polling-" + std::to_string(i));
}

double Loops::busy_s() const {
  double sum_s = 0;
  for (const auto& loop : loops_) sum_s += loop->busy_s();
  return sum_s;
}

std::int64_t Loops::num_moved() const {
  std::int64_t sum = 0;
  for (const auto& loop : loops_) sum += loop->num_moved();
  return sum;
}

std::vector<LoopLoad> Loops::Loads() const {
  std::vector<LoopLoad> loads;
  for (const auto& loop : loops_) loads.push_back({loop->processor_s(), loop->num_connections()});
  return loads;
}

double Loops::Look(double now_s) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (now_s >= balance_.next_s()) {
    if (const std::optional<LoopMove> move = balance_.Decide(now_s, Loads())) Move(*move);
  }
  return balance_.next_s();
}

void Loops::Move(const LoopMove& move) {
  Loop* const to = loops_[move.to].get();
  loops_[move.from]->outbox()->Run([share = move.share, to](Loop& from) { from.Move(share, to); });
}

void Loops::Watch(Listener* listener) {
  Loop& first = *loops_.front();
  RunIn(first, [&first, listener] { first.Watch(listener); }).get();
}

void Loops::Adopt(FileHandle file, PortState* port) {
  std::size_t loop = 0;
  if (loops_.size() > 1) {
    Look(MonotonicSeconds());
    const std::lock_guard<std::mutex> lock(mutex_);
    loop = balance_.LoopForNew(Loads());
  }
  loops_[loop]->Adopt(std::move(file), port);
}

void Loops::Drain(const PortState* port) {
  for (const auto& loop : loops_) loop->Drain(port);
}

void Loops::End(PortState* port) {
  Loop& first = *loops_.front();
  RunIn(first, [&first, port] { first.StopListening(port); }).wait();
  port->is_ending = true;
  RunInAll(loops_, [](Loop&) {});
  // No further connection is handed to a loop: all that were are ahead of these tasks.
  RunInAll(loops_, [port](Loop& loop) { loop.EndPort(port); });
}

void Loops::Stop() {
  for (const auto& loop : loops_) loop->Stop();
}

}  // namespace recsys::http2
