#include "engine/core/executor/executor_threads.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <new>
#include <system_error>
#include <utility>

#include "recsys/error.h"

namespace recsys {
namespace {

// Longest single wait, so that no number of seconds is too large for the clock.
constexpr double kLongestSleepS = 3600.0;

constexpr std::size_t kMaxThreadName = 15;

struct FreeCpus {
  void operator()(cpu_set_t* cpus) const { CPU_FREE(cpus); }
};

int NumProcessors() {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  if (sched_getaffinity(0, sizeof(cpus), &cpus) == 0) return std::max(CPU_COUNT(&cpus), 1);
  // More processors than such a set can hold.
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

}  // namespace

void ExecutorThreads::Join() {
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void ExecutorThreads::Wake(double now_s) {
  woken_s_ = now_s;
  if (has_sleeping()) return NoteOne();
  try {
    threads_.emplace_back(run_, threads_.size());
  } catch (const std::system_error&) {
    // No more threads available: one that ends its batch takes the slot.
  }
}

bool ExecutorThreads::TakeSlot() { return std::exchange(woken_s_, std::nullopt).has_value(); }

void ExecutorThreads::WakeBy(double at_s) {
  if (alarm_s_ == kNever || at_s < alarm_s_) NoteOne();
}

void ExecutorThreads::Notify(Notice notice) {
  if (notice == Notice::kOne) woken_.notify_one();
  if (notice == Notice::kAll) woken_.notify_all();
}

std::optional<double> ExecutorThreads::Sleep(std::unique_lock<std::mutex>& lock, double until_s) {
  // Waiting releases the lock.
  Notify(std::exchange(notice_, Notice::kNone));
  ++num_sleeping_;
  if (until_s == kNever) {
    woken_.wait(lock);
  } else {
    alarm_s_ = std::min(alarm_s_, until_s);
    const double seconds = std::min(until_s - clock_(), kLongestSleepS);
    woken_.wait_for(lock, std::chrono::duration<double>(seconds));
    alarm_s_ = kNever;
  }
  --num_sleeping_;
  if (!woken_s_) return std::nullopt;
  return clock_() - *woken_s_;
}

void NameThread(const std::string& name) {
  pthread_setname_np(pthread_self(), name.substr(0, kMaxThreadName).c_str());
}

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

std::int64_t NumPreempted() {
  rusage used{};
  return getrusage(RUSAGE_THREAD, &used) == 0 ? used.ru_nivcsw : 0;
}

Slots& Slots::Shared() {
  static Slots slots(NumProcessors());
  return slots;
}

void Slots::Set(int num_slots) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    num_slots_ = std::max(num_slots, 1);
  }
  GrantFree();
}

void Slots::SetAtLeast(int num_slots) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    num_slots_ = std::max(num_slots_.load(), num_slots);
  }
  GrantFree();
}

bool Slots::TakeBelow(int num) {
  int num_taken = num_taken_.load();
  while (num_taken < num) {
    if (num_taken_.compare_exchange_weak(num_taken, num_taken + 1)) return true;
  }
  return false;
}

bool Slots::Take(Waiter* waiter) {
  if (!has_waiting() && TakeBelow(num_slots_.load())) return true;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (waiter->is_waiting_) return false;
  waiter->is_waiting_ = true;
  waiting_.push_back(waiter);
  // Others that wait have done the same before.
  if (num_waiting_++ > 0 || !TakeBelow(num_slots_.load())) return false;
  waiting_.pop_back();
  waiter->is_waiting_ = false;
  --num_waiting_;
  return true;
}

bool Slots::TakeIfIdle() { return !has_waiting() && TakeBelow(1); }

bool Slots::Keep() {
  Waiter* waiter = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    waiter = Grant();
  }
  if (waiter == nullptr) return true;
  Tell(waiter);
  return false;
}

void Slots::Release() {
  --num_taken_;
  if (has_waiting()) GrantFree();
}

bool Slots::ReleaseUnlessWaiting() {
  if (has_waiting()) return false;
  --num_taken_;
  // If another has begun to wait meanwhile, the slot is its own: unless it is taken already.
  return !has_waiting() || !TakeBelow(num_slots_.load());
}

void Slots::Forget(Waiter* waiter) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (waiter->is_waiting_) {
    waiting_.erase(std::find(waiting_.begin(), waiting_.end(), waiter));
    waiter->is_waiting_ = false;
    --num_waiting_;
  }
  told_.wait(lock, [waiter] { return waiter->num_calls_ == 0; });
}

Slots::Waiter* Slots::Grant() {
  if (waiting_.empty()) return nullptr;
  Waiter* const waiter = waiting_.front();
  waiting_.pop_front();
  --num_waiting_;
  waiter->is_waiting_ = false;
  ++waiter->num_calls_;
  return waiter;
}

void Slots::Tell(Waiter* waiter) {
  waiter->Granted();
  const std::lock_guard<std::mutex> lock(mutex_);
  --waiter->num_calls_;
  told_.notify_all();
}

void Slots::GrantFree() {
  for (;;) {
    Waiter* waiter = nullptr;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (waiting_.empty() || !TakeBelow(num_slots_.load())) return;
      waiter = Grant();
    }
    Tell(waiter);
  }
}

}  // namespace recsys
