#include "engine/core/executor/executor_threads.h"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

namespace recsys {
namespace {

// Longest single wait, so that no number of seconds is too large for the clock.
constexpr double kLongestSleepS = 3600.0;

}  // namespace

void ExecutorThreads::Join() {
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void ExecutorThreads::Wake() {
  woken_s_ = clock_();
  if (has_sleeping()) return woken_.notify_one();
  try {
    threads_.emplace_back(run_, threads_.size());
  } catch (const std::system_error&) {
    // No more threads available: one that ends its batch takes the slot.
  }
}

bool ExecutorThreads::TakeSlot() { return std::exchange(woken_s_, std::nullopt).has_value(); }

void ExecutorThreads::WakeBy(double at_s) {
  if (alarm_s_ == kNever || at_s < alarm_s_) woken_.notify_one();
}

std::optional<double> ExecutorThreads::Sleep(std::unique_lock<std::mutex>& lock, double until_s) {
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

}  // namespace recsys
