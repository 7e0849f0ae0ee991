#include "port/polling/loops.h"

#include <algorithm>
#include <future>
#include <string>
#include <utility>

#include "port/polling/listener.h"

namespace recsys::http2 {
namespace {

/// Has a loop run a task. The future is ready once it has, with what it has thrown.
std::future<void> RunIn(Loop& loop, std::function<void()> function) {
  auto task = std::make_shared<std::packaged_task<void()>>(std::move(function));
  std::future<void> done = task->get_future();
  // A loop that has ended drops it, which makes the future ready too.
  loop.outbox()->Run([task] { (*task)(); });
  return done;
}

}  // namespace

Loops::Loops(int num_threads, std::function<std::unique_ptr<DeferredWork>()> make_deferred_work) {
  if (!make_deferred_work) {
    make_deferred_work = [] { return std::make_unique<DeferredWork>(); };
  }
  for (int i = 0; i < std::max(num_threads, 1); ++i) {
    loops_.push_back(std::make_unique<Loop>(make_deferred_work));
  }
  for (std::size_t i = 0; i < loops_.size(); ++i) loops_[i]->Start("polling-" + std::to_string(i));
}

double Loops::busy_s() const {
  double sum_s = 0;
  for (const auto& loop : loops_) sum_s += loop->busy_s();
  return sum_s;
}

void Loops::Watch(Listener* listener) {
  Loop& first = *loops_.front();
  RunIn(first, [&first, listener] { first.Watch(listener); }).get();
}

void Loops::Adopt(FileHandle file, PortState* port) {
  std::size_t least = next_;
  for (std::size_t i = 1; i < loops_.size(); ++i) {
    const std::size_t other = (next_ + i) % loops_.size();
    if (loops_[other]->num_connections() < loops_[least]->num_connections()) least = other;
  }
  next_ = (least + 1) % loops_.size();
  loops_[least]->Adopt(std::move(file), port);
}

void Loops::Drain(const PortState* port) {
  for (const auto& loop : loops_) loop->Drain(port);
}

void Loops::End(const PortState* port) {
  Loop& first = *loops_.front();
  RunIn(first, [&first, port] { first.StopListening(port); }).wait();
  // No further connection is handed to a loop: all that were are ahead of these tasks.
  std::vector<std::future<void>> ended;
  for (const auto& loop : loops_) {
    ended.push_back(RunIn(*loop, [&loop = *loop, port] { loop.EndPort(port); }));
  }
  for (const std::future<void>& one : ended) one.wait();
}

void Loops::Stop() {
  for (const auto& loop : loops_) loop->Stop();
}

}  // namespace recsys::http2
