#include "engine/core/executor.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <system_error>
#include <utility>

#include "engine/core/batch_runner.h"
#include "engine/core/queue/pending_decisions.h"
#include "recsys/error.h"

namespace recsys {
namespace {

// Longest single wait, so that no number of seconds is too large for the clock.
constexpr double kLongestSleepS = 3600.0;
constexpr std::size_t kMaxThreadName = 15;
// After requests of light clients a polling thread reads for at least so many times as long as it
// has run them.
constexpr double kReadingShare = 2;

void NameThread(const std::string& name) {
  pthread_setname_np(pthread_self(), name.substr(0, kMaxThreadName).c_str());
}

struct FreeCpus {
  void operator()(cpu_set_t* cpus) const { CPU_FREE(cpus); }
};

/// Restricts the calling thread to these processors. Throws Error if that fails.
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

/// Returns how often another thread has preempted the calling one.
long NumPreempted() {
  rusage used{};
  return getrusage(RUSAGE_THREAD, &used) == 0 ? used.ru_nivcsw : 0;
}

BatchSize SizeOf(const Requests& requests) {
  BatchSize size;
  for (const auto& request : requests) {
    size.num_rows += std::max<std::int64_t>(request->checked.num_rows, 1);
    size.num_ids += request->checked.num_ids;
  }
  return size;
}

BatchSize SizeOf(const WarmUpBatch& batch) {
  BatchSize size;
  for (const OwnedRequest& request : batch) {
    size.num_rows += request.checked.num_rows;
    size.num_ids += request.checked.num_ids;
  }
  return size;
}

}  // namespace

Executor::Executor(Servable& servable, Servable::Deliver deliver, Clock clock, Slots& slots)
    : servable_(servable),
      deliver_(std::move(deliver)),
      clock_(std::move(clock)),
      slots_(slots),
      queue_(servable.settings().limits, clock_, servable.signature().by_request) {
  slots_.SetAtLeast(static_cast<int>(max_threads()));
}

Executor::~Executor() { Close(); }

std::size_t Executor::max_threads() const {
  return static_cast<std::size_t>(std::max<std::int64_t>(servable_.settings().num_executors, 1));
}

void Executor::Start(std::vector<WarmUpBatch> warm_up) {
  warm_up_ = std::move(warm_up);
  const std::lock_guard<std::mutex> lock(mutex_);
  StartThread();
}

void Executor::StartThread() {
  const auto number = static_cast<std::int64_t>(threads_.size());
  threads_.emplace_back([this, number] { Run(number); });
}

void Executor::WaitUntilWarm() {
  std::unique_lock<std::mutex> lock(mutex_);
  warm_.wait(lock, [this] { return is_warm_; });
  warm_up_.clear();
  warm_up_.shrink_to_fit();
  if (warm_up_error_) {
    throw Error(ErrorKind::kExecution, "the model failed to warm up: " + *warm_up_error_);
  }
}

void Executor::Submit(const std::shared_ptr<Request>& request) {
  queue_.CheckSize(*request);
  Requests expired;
  std::optional<BatchQueue::Full> full;
  BatchQueue::PushedOut pushed_out;
  PendingDecisions* const pending = PendingDecisions::OfThisThread();
  bool is_first = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_closed_) {
      throw Error(ErrorKind::kDraining, "the server is stopping; send the request to another one");
    }
    full = queue_.Put(request, &expired, &pushed_out);
    if (!full) {
      // Before it can be answered, so that a client with the answer finds it counted.
      servable_.metrics().Accepted();
      ShowPending();
      policy_.Arrived(request->enqueued_s);
      if (queue_.has_delay()) {
        WakeToLook();
      } else if (pending != nullptr) {
        is_first = !std::exchange(is_held_, true);
      } else {
        Wake();
      }
    }
  }
  if (is_first) pending->Add({servable_.shared_from_this(), this});
  for (const auto& one : expired) GiveExpired(*one, deliver_);
  if (!pushed_out.requests.empty()) {
    const Status status = StatusOf(BatchQueue::ErrorOf(pushed_out));
    for (const auto& one : pushed_out.requests) {
      if (!one->is_ended.exchange(true)) deliver_(*one, status, {});
    }
  }
  if (full) BatchQueue::Throw(*full);
}

double Executor::Decide(bool may_run_here) {
  std::unique_lock<std::mutex> lock(mutex_);
  is_held_ = false;
  if (may_run_here && IsLightForHere()) RunLightHere(lock);
  // Resume and Close wake the threads themselves; a waking thread takes all waiting requests.
  if (queue_.is_idle() || is_pausing_ || is_closed_ || is_waking_) return kNever;
  const int num_running = policy_.num_running();
  BatchPolicy::State state = StateAt(clock_());
  state.may_run_here = may_run_here && !is_running_here_ && servable_.settings().cpus.empty() &&
                       slots_.num_taken() == 0;
  switch (policy_.Decide(state)) {
    case Act::kRunHere:
      if (slots_.TakeIfIdle()) {
        RunHere(lock);
      } else {
        Wake();
      }
      return kNever;
    case Act::kWake:
      Wake();
      return kNever;
    case Act::kLeave:
      break;
  }
  return num_running > 0 ? policy_.LooksAgainS(state.now_s) : kNever;
}

BatchRunner* Executor::RunnerHere() {
  if (runner_here_ == nullptr) {
    runner_here_ = std::make_unique<BatchRunner>(servable_, deliver_, clock_);
  }
  return runner_here_.get();
}

bool Executor::IsLightNext() const {
  return queue_.is_next_light() && !queue_.has_delay() && policy_.IsShort(queue_.light_size());
}

bool Executor::IsLightForHere() const {
  if (!IsLightNext() || is_pausing_ || is_closed_ || is_running_here_) return false;
  return servable_.settings().cpus.empty() && clock_() >= light_here_at_s_;
}

void Executor::RunLightHere(std::unique_lock<std::mutex>& lock) {
  const double began_s = clock_();
  queue_.Take(&taken_here_.requests, &taken_here_.expired, queue_.num_rows(), false, true);
  ShowPending();
  const int number = policy_.Began(SizeOf(taken_here_.requests), began_s, slots_.num_taken());
  is_running_here_ = true;
  RunTaken(lock, RunnerHere(), &taken_here_, number);
  is_running_here_ = false;
  const double ended_s = clock_();
  light_here_at_s_ = ended_s + kReadingShare * (ended_s - began_s);
}

void Executor::RunHere(std::unique_lock<std::mutex>& lock) {
  is_running_here_ = true;
  RunBatch(lock, RunnerHere(), &taken_here_);
  is_running_here_ = false;
  lock.unlock();
  slots_.Give();
  lock.lock();
  // Requests that arrived from other threads meanwhile.
  if (!queue_.is_idle() && !is_pausing_) Wake();
}

bool Executor::Cancel(Request& request) {
  // Declared first: the request is released after the lock.
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
    paused_.wait(lock, [this] { return policy_.num_running() == 0; });
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
  {
    // A polling thread may still run a batch.
    std::unique_lock<std::mutex> lock(mutex_);
    paused_.wait(lock, [this] { return policy_.num_running() == 0; });
  }
  slots_.Forget(this);
  if (std::exchange(is_waking_, false)) slots_.Give();
}

void Executor::Run(std::int64_t number) {
  NameThread("executor-" + servable_.name() + "-" + std::to_string(number));
  const std::unique_ptr<BatchRunner> runner = MakeRunner(number == 0);
  if (runner == nullptr) return;
  Taken taken;
  bool has_slot = false;
  std::unique_lock<std::mutex> lock(mutex_);
  while (WaitForBatch(lock, &has_slot)) {
    RunBatch(lock, runner.get(), &taken);
    if (slots_.has_waiting()) {
      lock.unlock();
      has_slot = slots_.Keep();
      lock.lock();
    }
    // Sleeping threads exit once nothing is left.
    if (is_closed_) ready_.notify_all();
  }
}

void Executor::RunBatch(std::unique_lock<std::mutex>& lock, BatchRunner* runner, Taken* taken) {
  BatchPolicy::State state = StateAt(clock_());
  state.has_light_client = !queue_.has_delay() && queue_.HasLightClient(state.now_s);
  queue_.Take(&taken->requests, &taken->expired, ShareOf(state), state.has_light_client,
              IsLightNext());
  ShowPending();
  const int number = policy_.Began(SizeOf(taken->requests), state.now_s, slots_.num_taken() - 1);
  if (!queue_.is_idle() && !queue_.has_delay() &&
      policy_.Decide(StateAt(state.now_s)) == Act::kWake) {
    Wake();
  }
  RunTaken(lock, runner, taken, number);
}

void Executor::RunTaken(std::unique_lock<std::mutex>& lock, BatchRunner* runner, Taken* taken,
                        int number) {
  lock.unlock();
  for (const auto& request : taken->expired) GiveExpired(*request, deliver_);
  const long num_preempted = NumPreempted();
  runner->Run(&taken->requests);
  const bool was_preempted = NumPreempted() != num_preempted;
  const bool is_empty = taken->requests.empty();
  taken->expired.clear();
  taken->requests.clear();
  lock.lock();
  if (is_empty) {
    policy_.Dropped(number);
  } else {
    policy_.Ended(number, clock_(), slots_.num_taken() - 1, was_preempted);
  }
  if (is_pausing_ || is_closed_) paused_.notify_all();
}

std::int64_t Executor::ShareOf(BatchPolicy::State state) const {
  // Batches that may wait to be filled must not be divided.
  if (queue_.has_delay()) return queue_.num_rows();
  // The caller was idle until now, and a waking thread already has its slot.
  const int num_idle = static_cast<int>(max_threads()) - policy_.num_running() - 1;
  state.num_free = std::clamp(slots_.num_free() + (is_waking_ ? 1 : 0), 0, std::max(num_idle, 0));
  return policy_.ShareOf(state);
}

/// Returns null if the model failed.
std::unique_ptr<BatchRunner> Executor::MakeRunner(bool is_first) {
  std::unique_ptr<BatchRunner> runner;
  std::optional<std::string> failure;
  try {
    if (!servable_.settings().cpus.empty()) StayOn(servable_.settings().cpus);
    runner = std::make_unique<BatchRunner>(servable_, deliver_, clock_);
    if (is_first) WarmUp(runner.get());
  } catch (const std::exception& error) {
    failure = error.what();
  } catch (...) {
    failure = "an exception of an unknown type";
  }
  if (!is_first) return failure ? nullptr : std::move(runner);
  const std::lock_guard<std::mutex> lock(mutex_);
  is_warm_ = true;
  warm_.notify_all();
  if (!failure) return runner;
  warm_up_error_ = std::move(failure);
  return nullptr;
}

void Executor::WarmUp(BatchRunner* runner) {
  BatchSize last;
  for (const WarmUpBatch& batch : warm_up_) {
    const double began_s = clock_();
    try {
      runner->WarmUp(batch);
    } catch (const Error& error) {
      // Of made IDs the model may compute others than of real ones.
      if (error.kind() != ErrorKind::kRequest) throw;
      continue;
    }
    const BatchSize size = SizeOf(batch);
    // The first batch of a size takes many times as long as the following ones.
    const bool is_second = size.num_rows == last.num_rows && size.num_ids == last.num_ids;
    last = size;
    if (!is_second) continue;
    const std::lock_guard<std::mutex> lock(mutex_);
    policy_.costs().Learn(size, clock_() - began_s);
  }
}

bool Executor::WaitForBatch(std::unique_lock<std::mutex>& lock, bool* has_slot) {
  for (;;) {
    if (!*has_slot) *has_slot = std::exchange(is_waking_, false);
    double until_s = kNever;
    if (MayStart(&until_s)) {
      // If none is free, Granted wakes a thread.
      if (*has_slot || slots_.Take(this)) return *has_slot = true;
      until_s = kNever;
    }
    if (std::exchange(*has_slot, false)) {
      lock.unlock();
      slots_.Give();
      lock.lock();
      continue;
    }
    if (is_closed_ && queue_.is_idle()) return false;
    Sleep(lock, until_s);
  }
}

BatchPolicy::State Executor::StateAt(double now_s) const {
  BatchPolicy::State state;
  state.now_s = now_s;
  state.waiting = {queue_.num_rows(), queue_.num_ids()};
  const int num_idle = static_cast<int>(max_threads()) - policy_.num_running();
  state.num_free = std::clamp(num_idle, 0, slots_.num_free());
  return state;
}

bool Executor::MayStart(double* until_s) {
  if (is_pausing_ || queue_.is_idle()) return false;
  // The thread that ends a batch checks the queue.
  if (static_cast<std::size_t>(policy_.num_running()) >= max_threads()) return false;
  if (is_closed_) return true;
  if (queue_.has_delay()) {
    const double ready_s = *queue_.ReadyAt();
    if (ready_s > clock_()) {
      *until_s = ready_s;
      return false;
    }
  }
  const BatchPolicy::State state = StateAt(clock_());
  if (policy_.GoesOn(state)) return true;
  *until_s = policy_.LooksAgainS(state.now_s);
  return false;
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
  if (is_waking_) policy_.Woke(clock_() - woken_s_);
}

void Executor::Wake() {
  // A waking thread takes all waiting requests.
  if (is_waking_ || (num_sleeping_ == 0 && threads_.size() >= max_threads())) return;
  // If none is free, Granted wakes a thread.
  if (!slots_.Take(this)) return;
  is_waking_ = true;
  woken_s_ = clock_();
  if (num_sleeping_ > 0) return ready_.notify_one();
  try {
    StartThread();
  } catch (const std::system_error&) {
    // No more threads available: a thread that ends its batch returns the slot.
  }
}

void Executor::WakeToLook() {
  if (looks_at_s_ != kNever && *queue_.ReadyAt() >= looks_at_s_) return;
  ready_.notify_one();
}

void Executor::Granted() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!is_pausing_ && !queue_.is_idle() && num_sleeping_ > 0 && !is_waking_) {
      is_waking_ = true;
      woken_s_ = clock_();
      ready_.notify_one();
      return;
    }
  }
  slots_.Give();
}

void Executor::ShowPending() {
  servable_.metrics().SetPending(queue_.num_rows(), queue_.num_ids(), queue_.num_bytes());
}

}  // namespace recsys
