#include "server/core/executor.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <utility>

#include "recsys/error.h"
#include "server/core/batch_runner.h"

namespace recsys {
namespace {

// A wait is looked at again after that, so that no number of seconds is too large for the clock.
constexpr double kLongestSleepS = 3600.0;
constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr std::size_t kMaxThreadName = 15;

void NameThread(const std::string& name) {
  pthread_setname_np(pthread_self(), name.substr(0, kMaxThreadName).c_str());
}

struct FreeCpus {
  void operator()(cpu_set_t* cpus) const { CPU_FREE(cpus); }
};

/// Lets the calling thread run on these processors alone. Throws Error where it cannot.
void StayOn(const std::vector<std::int64_t>& cpus) {
  constexpr std::int64_t kMost = 1 << 20;
  const std::int64_t largest =
      std::clamp<std::int64_t>(*std::max_element(cpus.begin(), cpus.end()), 0, kMost - 1);
  const std::unique_ptr<cpu_set_t, FreeCpus> set(CPU_ALLOC(static_cast<std::size_t>(largest + 1)));
  if (set == nullptr) throw std::bad_alloc();
  const std::size_t num_bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(largest + 1));
  CPU_ZERO_S(num_bytes, set.get());
  for (const std::int64_t cpu : cpus) {
    if (cpu >= 0 && cpu <= largest) CPU_SET_S(static_cast<std::size_t>(cpu), num_bytes, set.get());
  }
  if (sched_setaffinity(0, num_bytes, set.get()) != 0) {
    const int number = errno;
    throw Error(ErrorKind::kExecution,
                "[Errno " + std::to_string(number) + "] " + std::strerror(number));
  }
}

}  // namespace

Executor::Executor(Hosted& hosted, Hosted::Deliver deliver, Clock clock)
    : hosted_(hosted),
      deliver_(std::move(deliver)),
      clock_(std::move(clock)),
      queue_(hosted.settings().limits, clock_) {}

Executor::~Executor() { Close(); }

void Executor::Start(std::vector<WarmUpBatch> warm_up) {
  warm_up_ = std::move(warm_up);
  const std::int64_t num_threads = hosted_.settings().num_executors;
  threads_.reserve(static_cast<std::size_t>(num_threads));
  for (std::int64_t i = 0; i < num_threads; ++i) threads_.emplace_back([this, i] { Run(i); });
}

void Executor::WaitUntilWarm() {
  std::unique_lock<std::mutex> lock(mutex_);
  warm_.wait(lock, [this] { return num_warm_ == threads_.size(); });
  warm_up_.clear();
  warm_up_.shrink_to_fit();
  if (warm_up_error_) {
    throw Error(ErrorKind::kExecution, "the model failed to warm up: " + *warm_up_error_);
  }
}

void Executor::Submit(const std::shared_ptr<Request>& request) {
  Requests expired;
  bool wakes = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_closed_) {
      throw Error(ErrorKind::kDraining, "the server is stopping; send the request to another one");
    }
    queue_.Put(request, &expired);
    // Before anybody can answer it, so that whoever has its answer finds it counted.
    hosted_.metrics().Accepted();
    ShowPending();
    wakes = WakeOne();
  }
  if (wakes) ready_.notify_one();
  for (const auto& one : expired) GiveExpired(*one, deliver_);
}

bool Executor::Cancel(Request& request) {
  // Lets the request go after the lock.
  std::shared_ptr<Request> left;
  const std::lock_guard<std::mutex> lock(mutex_);
  left = queue_.Cancel(request);
  if (left != nullptr) ShowPending();
  return left != nullptr;
}

void Executor::RunBetweenBatches(const std::function<void()>& function) {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    paused_.wait(lock, [this] { return !is_pausing_; });
    is_pausing_ = true;
    paused_.wait(lock, [this] { return num_running_ == 0; });
  }
  try {
    function();
  } catch (...) {
    Resume();
    throw;
  }
  Resume();
}

void Executor::Resume() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_pausing_ = false;
  }
  paused_.notify_all();
  ready_.notify_all();
}

void Executor::Close() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_closed_ = true;
  }
  ready_.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void Executor::Run(std::int64_t number) {
  NameThread("executor-" + hosted_.name() + "-" + std::to_string(number));
  const std::unique_ptr<BatchRunner> runner = MakeWarm();
  if (runner == nullptr) return;
  Requests batch, expired;
  std::unique_lock<std::mutex> lock(mutex_);
  while (WaitForBatch(lock)) {
    queue_.Take(&batch, &expired);
    ShowPending();
    ++num_running_;
    // What is left is for others that are idle.
    if (!queue_.is_idle() && WakeOne()) ready_.notify_one();
    lock.unlock();
    for (const auto& request : expired) GiveExpired(*request, deliver_);
    runner->Run(&batch);
    expired.clear();
    batch.clear();
    lock.lock();
    --num_running_;
    if (is_pausing_) paused_.notify_all();
  }
}

/// Null where the model failed.
std::unique_ptr<BatchRunner> Executor::MakeWarm() {
  std::unique_ptr<BatchRunner> runner;
  std::optional<std::string> failure;
  try {
    if (!hosted_.settings().cpus.empty()) StayOn(hosted_.settings().cpus);
    runner = std::make_unique<BatchRunner>(hosted_, deliver_, clock_);
    for (const WarmUpBatch& batch : warm_up_) runner->WarmUp(batch);
  } catch (const std::exception& error) {
    failure = error.what();
  } catch (...) {
    failure = "an exception of an unknown type";
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  ++num_warm_;
  warm_.notify_all();
  if (!failure) return runner;
  if (!warm_up_error_) warm_up_error_ = std::move(failure);
  return nullptr;
}

bool Executor::WaitForBatch(std::unique_lock<std::mutex>& lock) {
  for (;;) {
    double until_s = kNever;
    if (!is_pausing_) {
      if (queue_.is_idle()) {
        if (is_closed_) return false;
      } else {
        if (is_closed_ || !queue_.has_delay()) return true;
        until_s = *queue_.ReadyAt();
        if (until_s <= clock_()) return true;
      }
    }
    Sleep(lock, until_s);
  }
}

void Executor::Sleep(std::unique_lock<std::mutex>& lock, double until_s) {
  ++num_sleeping_;
  if (until_s == kNever) {
    ready_.wait(lock);
  } else {
    looks_at_s_ = std::min(looks_at_s_, until_s);
    const double seconds = std::min(until_s - clock_(), kLongestSleepS);
    ready_.wait_for(lock, std::chrono::duration<double>(seconds));
    looks_at_s_ = kNever;
  }
  --num_sleeping_;
  // Woken or not: it looks at all that there is, so that one fewer needs to be.
  if (num_waking_ > 0) --num_waking_;
}

bool Executor::WakeOne() {
  if (num_sleeping_ <= num_waking_) return false;
  // A batch that may grow is looked at in time without that.
  if (looks_at_s_ != kNever && *queue_.ReadyAt() >= looks_at_s_) return false;
  ++num_waking_;
  return true;
}

void Executor::ShowPending() {
  hosted_.metrics().SetPending(queue_.num_rows(), queue_.num_ids(), queue_.num_bytes());
}

}  // namespace recsys
