#include "engine/core/executor/executor.h"

#include <algorithm>
#include <exception>
#include <future>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "engine/core/executor/executor_threads.h"
#include "engine/core/executor/pending_decisions.h"
#include "recsys/error.h"

namespace recsys {
namespace {

// After requests of light clients a polling thread reads for at least so many times as long as it
// has run them.
constexpr double kReadingShare = 2;

BatchSize SizeOf(const CheckedRequest& checked) { return {CountedRows(checked), checked.num_ids}; }

std::vector<BatchPolicy::Part> PartsOf(const CutRequest& cut) {
  std::vector<BatchPolicy::Part> parts;
  for (const CutRequest::Part& part : cut.parts()) {
    BatchSize size = SizeOf(part.checked);
    if (part.has_context_values) size.num_ids -= NumContextIds(part.checked);
    parts.push_back({size, part.seconds});
  }
  return parts;
}

BatchSize SizeOf(const WarmUpBatch& batch) {
  BatchSize size;
  for (const OwnedRequest& request : batch) {
    size.num_rows += CountedRows(request.checked);
    size.num_ids += request.checked.num_ids;
  }
  return size;
}

std::size_t MaxThreads(const VersionSettings& settings) {
  return static_cast<std::size_t>(std::max<std::int64_t>(settings.num_executors, 1));
}

/// Releases a lock while it lives.
class Unlocked {
 public:
  explicit Unlocked(ExecutorLock& lock) : lock_(lock) { lock_.Unlock(); }
  ~Unlocked() { lock_.Lock(); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  ExecutorLock& lock_;
};

/// Returns the current exception as that of a warm-up.
Error WarmUpError() {
  std::string text = "an exception of an unknown type";
  try {
    throw;
  } catch (const std::exception& error) {
    text = error.what();
  } catch (...) {
  }
  return Error(ErrorKind::kExecution, "the model failed to warm up: " + text);
}

}  // namespace

Executor::Executor(Servable& servable, Servable::Deliver deliver, Clock clock, Slots& slots)
    : servable_(servable),
      deliver_(std::move(deliver)),
      clock_(std::move(clock)),
      slots_(slots),
      queue_(servable.settings().limits, clock_, servable.signature().by_request),
      threads_(MaxThreads(servable.settings()), clock_,
               [this](std::size_t number) { RunFurtherThread(number); }),
      here_{{servable_, deliver_, clock_}} {
  slots_.SetAtLeast(static_cast<int>(threads_.most()));
}

Executor::~Executor() { Close(); }

void Executor::Start(const std::vector<WarmUpBatch>& warm_up) {
  std::promise<void> warm;
  std::future<void> is_warm = warm.get_future();
  {
    const Lock lock(mutex_, threads_);
    threads_.Start(std::thread([this, &warm_up, warm = std::move(warm)]() mutable {
      std::unique_ptr<Worker> worker;
      try {
        worker = MakeWorker(0);
        WarmUp(worker->runner, warm_up);
      } catch (...) {
        return warm.set_exception(std::make_exception_ptr(WarmUpError()));
      }
      // Requests wait for the lock until the thread sleeps: those that come at once find it idle.
      Lock running(mutex_, threads_);
      warm.set_value();
      Run(running, *worker);
    }));
  }
  is_warm.get();
}

void Refusal::Throw() const {
  if (full) throw BatchQueue::ErrorOf(*full);
  if (failure != nullptr) std::rethrow_exception(failure);
  throw Error(ErrorKind::kDraining, "the server is stopping; send the request to another one");
}

void Executor::Submit(const std::shared_ptr<Request>& request) {
  CheckSize(*request);
  std::vector<Refusal> refused;
  SubmitAll({&request, 1}, &refused);
  if (!refused.empty()) refused[0].Throw();
}

void Executor::SubmitAll(Span<const std::shared_ptr<Request>> requests,
                         std::vector<Refusal>* refused) {
  Requests expired;
  BatchQueue::PushedOut pushed_out;
  PendingDecisions* const pending = PendingDecisions::OfThisThread();
  bool is_pending = false;
  for (const auto& request : requests) queue_.Prepare(*request);
  {
    const Lock lock(mutex_, threads_);
    if (phase_ == Phase::kClosed) {
      for (const auto& request : requests) refused->push_back({request});
      return;
    }
    const double now_s = queue_.Now();
    std::int64_t num_queued = 0;
    for (const auto& request : requests) {
      try {
        if (auto full = queue_.PutAt(now_s, request, &expired, &pushed_out)) {
          refused->push_back({request, full});
        } else {
          ++num_queued;
        }
      } catch (const std::bad_alloc&) {
        refused->push_back({request, {}, std::current_exception()});
      }
    }
    // Before they can be answered, so that a client with the answer finds it counted.
    if (num_queued > 0) servable_.metrics().Accepted(num_queued);
    if (num_queued > 0 || !expired.empty()) ShowPending();
    if (num_queued > 0) {
      policy_.Arrived(now_s, num_queued);
      is_pending = pending != nullptr && !queue_.has_delay();
      if (queue_.has_delay()) {
        // Later ones may have pushed all of them out.
        if (const auto ready_s = queue_.ReadyAt()) threads_.WakeBy(*ready_s);
      } else if (!is_pending) {
        Wake(clock_());
      }
    }
  }
  if (is_pending) pending->Add(*this);
  for (const auto& one : expired) AnswerExpired(*one, deliver_);
  if (pushed_out.requests.empty()) return;
  const Status status = StatusOf(BatchQueue::ErrorOf(pushed_out));
  for (const auto& one : pushed_out.requests) {
    if (!one->is_ended.exchange(true)) deliver_(*one, status, {});
  }
}

bool Executor::Cancel(Request& request) {
  // Declared first: the request is released after the lock.
  std::shared_ptr<Request> left;
  const Lock lock(mutex_, threads_);
  left = queue_.Cancel(request);
  if (left != nullptr) ShowPending();
  return left != nullptr;
}

double Executor::Schedule(bool may_run_here) {
  Lock lock(mutex_, threads_);
  if (may_run_here && CanRunHere() && IsLightNext() && clock_() >= reads_until_s_) {
    RunLightHere(lock);
  }
  // Threads that are woken anyway take all waiting requests.
  if (queue_.is_idle() || phase_ != Phase::kOpen || threads_.is_waking()) return kNever;
  BatchPolicy::State state = StateAt(clock_());
  state.may_run_here = may_run_here && CanRunHere() && slots_.num_taken() == 0;
  switch (policy_.Decide(state)) {
    case Act::kRunHere:
      if (slots_.TakeIfIdle()) {
        RunHere(lock, state.now_s);
      } else {
        Wake(state.now_s);
      }
      return kNever;
    case Act::kWake:
      Wake(state.now_s);
      return kNever;
    case Act::kLeave:
      break;
  }
  return policy_.LooksAgainS(state.now_s);
}

void Executor::RunBetweenBatches(const std::function<void()>& function) {
  SetPhase(Phase::kPaused);
  {
    std::unique_lock<std::mutex> lock(mutex_);
    idle_.wait(lock, [this] { return policy_.num_running() == 0; });
  }
  try {
    function();
  } catch (...) {
    SetPhase(Phase::kOpen);
    throw;
  }
  SetPhase(Phase::kOpen);
}

void Executor::Close() {
  SetPhase(Phase::kClosed);
  threads_.Join();
  {
    // A polling thread may still run a batch.
    std::unique_lock<std::mutex> lock(mutex_);
    idle_.wait(lock, [this] { return policy_.num_running() == 0; });
  }
  slots_.Forget(this);
  if (threads_.TakeSlot()) slots_.Release();
}

void Executor::SetPhase(Phase phase) {
  const Lock lock(mutex_, threads_);
  phase_ = phase;
  // Threads that sleep have nothing to do in a pause.
  if (phase != Phase::kPaused) threads_.WakeAll();
}

std::unique_ptr<Executor::Worker> Executor::MakeWorker(std::size_t number) {
  NameThread("executor-" + servable_.name() + "-" + std::to_string(number));
  if (!servable_.settings().cpus.empty()) StayOn(servable_.settings().cpus);
  return std::unique_ptr<Worker>(new Worker{{servable_, deliver_, clock_}});
}

void Executor::WarmUp(BatchRunner& runner, const std::vector<WarmUpBatch>& batches) {
  BatchSize last;
  for (const WarmUpBatch& batch : batches) {
    const double began_s = clock_();
    try {
      runner.WarmUp(batch);
    } catch (const Error& error) {
      // The model may refuse synthetic IDs that no real request has.
      if (error.kind() != ErrorKind::kRequest) throw;
      continue;
    }
    const BatchSize size = SizeOf(batch);
    // The first batch of a size takes many times as long as the following ones.
    const bool is_second = size.num_rows == last.num_rows && size.num_ids == last.num_ids;
    last = size;
    if (!is_second) continue;
    const Lock lock(mutex_, threads_);
    policy_.costs().Learn(size, clock_() - began_s);
  }
}

void Executor::RunFurtherThread(std::size_t number) {
  std::unique_ptr<Worker> worker;
  try {
    worker = MakeWorker(number);
  } catch (...) {
    // There is no memory for another thread: the others take its slot.
    const Lock lock(mutex_, threads_);
    return threads_.WakeAll();
  }
  Lock lock(mutex_, threads_);
  Run(lock, *worker);
}

void Executor::Run(Lock& lock, Worker& worker) {
  bool has_slot = false;
  for (;;) {
    has_slot = has_slot || threads_.TakeSlot();
    if (const std::shared_ptr<CutRequest> cut = CutForHelp()) {
      has_slot = has_slot || slots_.Take(this);
      if (has_slot) {
        Help(lock, worker, cut);
        continue;
      }
    }
    const double now_s = queue_.is_idle() ? 0 : clock_();
    std::optional<double> sleeps_until_s = SleepsUntilS(now_s);
    if (!sleeps_until_s) {
      has_slot = has_slot || slots_.Take(this);
      if (has_slot) {
        RunBatch(lock, worker, now_s);
        if (slots_.has_waiting()) {
          const Unlocked unlocked(lock);
          has_slot = slots_.Keep();
        }
        continue;
      }
      // Granted wakes a thread once a slot is free.
      sleeps_until_s = kNever;
    }
    if (std::exchange(has_slot, false) && ReleaseSlot(lock)) continue;
    if (phase_ == Phase::kClosed && queue_.is_idle()) break;
    if (const auto woke_s = lock.Sleep(*sleeps_until_s)) policy_.Woke(*woke_s);
  }
  // The others end too.
  threads_.WakeAll();
}

std::optional<double> Executor::SleepsUntilS(double now_s) {
  if (phase_ == Phase::kPaused || queue_.is_idle()) return kNever;
  // The thread that ends a batch checks the queue.
  if (static_cast<std::size_t>(policy_.num_running()) >= threads_.most()) return kNever;
  if (phase_ == Phase::kClosed) return std::nullopt;
  const double ready_s = queue_.has_delay() ? *queue_.ReadyAt(now_s) : now_s;
  if (ready_s > now_s) return ready_s;
  if (policy_.GoesOn(StateAt(now_s))) return std::nullopt;
  return policy_.LooksAgainS(now_s);
}

void Executor::Wake(double now_s) {
  // Close waits for the threads that there are.
  if (phase_ == Phase::kClosed && !threads_.has_sleeping()) return;
  // If no slot is free, Granted wakes a thread.
  if (threads_.CanWake() && slots_.Take(this)) threads_.Wake(now_s);
}

void Executor::Granted() {
  {
    const Lock lock(mutex_, threads_);
    const bool waits = (phase_ != Phase::kPaused && !queue_.is_idle()) || CutForHelp() != nullptr;
    if (waits && threads_.has_sleeping() && !threads_.is_waking()) return threads_.Wake(clock_());
    if (phase_ == Phase::kClosed) threads_.WakeAll();
  }
  slots_.Release();
}

bool Executor::ReleaseSlot(Lock& lock) {
  if (slots_.ReleaseUnlessWaiting()) return false;
  // Another executor, or this one, may be granted the slot.
  const Unlocked unlocked(lock);
  slots_.Release();
  return true;
}

void Executor::RunBatch(Lock& lock, Worker& worker, double now_s) {
  BatchPolicy::State state = StateAt(now_s);
  state.has_light_client = !queue_.has_delay() && queue_.HasLightClient(state.now_s);
  worker.size =
      queue_.TakeAt(queue_.At(now_s), &worker.requests, &worker.expired,
                    {ShareOf(state), state.has_light_client, IsLightNext()}, &worker.others);
  RunTaken(lock, worker, state.now_s, true);
}

void Executor::RunTaken(Lock& lock, Worker& worker, double began_s, bool has_slot) {
  const int num_own = has_slot ? 1 : 0;
  ShowPending();
  const int number = policy_.Began(worker.size, began_s, slots_.num_taken() - num_own);
  if (has_slot && !queue_.is_idle() && !queue_.has_delay() &&
      policy_.Decide(StateAt(began_s)) == Act::kWake) {
    Wake(began_s);
  }
  const bool is_empty = worker.requests.empty() && worker.others == nullptr;
  bool was_preempted = false;
  double ended_s = 0;
  const std::shared_ptr<CutRequest> cut = &worker == &here_ ? nullptr : Cut(worker, began_s);
  {
    const Unlocked unlocked(lock);
    BatchQueue::AppendAll(std::exchange(worker.others, nullptr), &worker.requests);
    for (const auto& request : worker.expired) AnswerExpired(*request, deliver_);
    const std::int64_t num_preempted = NumPreempted();
    worker.runner.Run(&worker.requests, cut.get());
    ended_s = clock_();
    was_preempted = NumPreempted() != num_preempted;
    worker.expired.clear();
    worker.requests.clear();
  }
  if (is_empty) {
    policy_.Dropped(number);
  } else if (cut != nullptr) {
    cut_.erase(std::find(cut_.begin(), cut_.end(), cut));
    policy_.EndedInParts(number, PartsOf(*cut), was_preempted);
  } else {
    policy_.Ended(number, ended_s, slots_.num_taken() - num_own, was_preempted);
  }
  if (phase_ != Phase::kOpen) idle_.notify_all();
}

std::shared_ptr<CutRequest> Executor::Cut(const Worker& worker, double now_s) {
  const bool may_cut = worker.requests.size() == 1 && queue_.is_idle() && phase_ == Phase::kOpen &&
                       !servable_.signature().by_request &&
                       servable_.info().target.rfind("cuda", 0) != 0;
  if (!may_cut) return nullptr;
  BatchPolicy::State state = StateAt(now_s);
  state.waiting = worker.size;
  const CheckedRequest& checked = worker.requests[0]->checked;
  state.num_context_ids = NumContextIds(checked);
  state.shares_context = checked.has_context && servable_.model().shares_contexts();
  const std::int64_t num_parts = std::min<std::int64_t>(policy_.NumParts(state), checked.num_rows);
  if (num_parts < 2) return nullptr;
  auto cut =
      std::make_shared<CutRequest>(checked, servable_.signature(), static_cast<int>(num_parts));
  if (state.shares_context) {
    cut->ShareContext([this] {
      const Lock lock(mutex_, threads_);
      Wake(clock_());
    });
  }
  cut_.push_back(cut);
  servable_.metrics().RequestCut();
  if (cut->has_unclaimed()) Wake(now_s);
  return cut;
}

std::shared_ptr<CutRequest> Executor::CutForHelp() const {
  for (const std::shared_ptr<CutRequest>& one : cut_) {
    if (one->has_unclaimed()) return one;
  }
  return nullptr;
}

void Executor::Help(Lock& lock, Worker& worker, const std::shared_ptr<CutRequest>& cut) {
  CutRequest::Part* const part = cut->Claim();
  if (part == nullptr) return;
  // One at a time is woken, so each wakes the next: for further parts, and for requests that have
  // come since and expect this one to take them.
  const double now_s = clock_();
  const bool is_needed = cut->has_unclaimed() || (!queue_.is_idle() && !queue_.has_delay() &&
                                                  policy_.Decide(StateAt(now_s)) == Act::kWake);
  if (is_needed) Wake(now_s);
  const Unlocked unlocked(lock);
  worker.runner.Help(cut.get(), part);
}

bool Executor::CanRunHere() const {
  // Reading rows from other machines would hold the polling thread.
  return !is_running_here_ && phase_ == Phase::kOpen && servable_.settings().cpus.empty() &&
         servable_.settings().rows.empty();
}

void Executor::RunHere(Lock& lock, double now_s) {
  is_running_here_ = true;
  RunBatch(lock, here_, now_s);
  is_running_here_ = false;
  ReleaseSlot(lock);
  // Requests that arrived from other threads meanwhile.
  if (!queue_.is_idle() && phase_ != Phase::kPaused) Wake(clock_());
}

bool Executor::IsLightNext() const {
  return queue_.is_next_light() && !queue_.has_delay() && policy_.IsShort(queue_.light_size());
}

void Executor::RunLightHere(Lock& lock) {
  const double began_s = clock_();
  is_running_here_ = true;
  TakeLimits limits;
  limits.light_only = true;
  here_.size =
      queue_.TakeAt(queue_.At(began_s), &here_.requests, &here_.expired, limits, &here_.others);
  RunTaken(lock, here_, began_s, false);
  is_running_here_ = false;
  const double ended_s = clock_();
  reads_until_s_ = ended_s + kReadingShare * (ended_s - began_s);
}

BatchPolicy::State Executor::StateAt(double now_s) const {
  BatchPolicy::State state;
  state.now_s = now_s;
  state.waiting = {queue_.num_rows(), queue_.num_ids()};
  const int num_idle = static_cast<int>(threads_.most()) - policy_.num_running();
  state.num_free = std::clamp(num_idle, 0, slots_.num_free());
  return state;
}

std::int64_t Executor::ShareOf(BatchPolicy::State state) const {
  // Batches that may wait to be filled must not be divided.
  if (queue_.has_delay()) return queue_.num_rows();
  // The caller was idle until now, and a waking thread already has its slot.
  const int num_idle = static_cast<int>(threads_.most()) - policy_.num_running() - 1;
  const int num_free = slots_.num_free() + (threads_.is_waking() ? 1 : 0);
  state.num_free = std::clamp(num_free, 0, std::max(num_idle, 0));
  return policy_.ShareOf(state);
}

void Executor::ShowPending() {
  servable_.metrics().SetPending(queue_.num_rows(), queue_.num_ids(), queue_.num_bytes());
}

}  // namespace recsys
