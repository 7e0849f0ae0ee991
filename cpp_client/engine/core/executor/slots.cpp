#include "engine/core/executor/slots.h"

#include <sched.h>

#include <algorithm>
#include <thread>

namespace recsys {
namespace {

int NumProcessors() {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  if (sched_getaffinity(0, sizeof(cpus), &cpus) == 0) return std::max(CPU_COUNT(&cpus), 1);
  // More processors than such a set can hold.
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

}  // namespace

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

bool Slots::Take(Waiter* waiter) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (num_taken_ < num_slots_ && waiting_.empty()) {
    ++num_taken_;
    return true;
  }
  if (!waiter->is_waiting_) {
    waiter->is_waiting_ = true;
    waiting_.push_back(waiter);
    ++num_waiting_;
  }
  return false;
}

bool Slots::TakeIfIdle() {
  if (num_taken() > 0) return false;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (num_taken_ > 0) return false;
  ++num_taken_;
  return true;
}

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
  Waiter* waiter = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (num_taken_ <= num_slots_) waiter = Grant();
    if (waiter == nullptr) --num_taken_;
  }
  if (waiter != nullptr) Tell(waiter);
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
      if (num_taken_ < num_slots_) waiter = Grant();
      if (waiter == nullptr) return;
      ++num_taken_;
    }
    Tell(waiter);
  }
}

}  // namespace recsys
