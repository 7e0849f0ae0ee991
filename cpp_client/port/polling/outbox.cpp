#include "port/polling/outbox.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "port/polling/loop.h"
#include "port/polling/posted_calls.h"

namespace recsys::http2 {
namespace {

thread_local const Outbox* polled_here = nullptr;

}  // namespace

Outbox::Outbox() : wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!wake_.is_open()) throw std::system_error(errno, std::generic_category(), "eventfd");
}

void Outbox::Post(std::shared_ptr<Posted> call) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_closed_) return;
  calls_.push_back(std::move(call));
  WakeIfAsleep();
}

bool Outbox::Run(std::function<void(Loop&)> task) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_closed_) return false;
  tasks_.push_back(std::move(task));
  WakeIfAsleep();
  return true;
}

bool Outbox::IsHere() const { return polled_here == this; }

void Outbox::BeginPolling() { polled_here = this; }

void Outbox::ClearWake() {
  eventfd_t count = 0;
  eventfd_read(wake_.number(), &count);
}

void Outbox::WakeIfAsleep() {
  if (std::exchange(is_asleep_, false)) eventfd_write(wake_.number(), 1);
}

void Outbox::TakeCalls(std::vector<std::shared_ptr<Posted>>* calls) {
  const std::lock_guard<std::mutex> lock(mutex_);
  calls->swap(calls_);
}

void Outbox::TakeTasks(std::vector<std::function<void(Loop&)>>* tasks) {
  const std::lock_guard<std::mutex> lock(mutex_);
  tasks->swap(tasks_);
}

bool Outbox::Sleep() {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_asleep_ = calls_.empty() && tasks_.empty();
  return is_asleep_;
}

void Outbox::Awake() {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_asleep_ = false;
}

void Outbox::Close() {
  std::vector<std::shared_ptr<Posted>> calls;
  std::vector<std::function<void(Loop&)>> tasks;
  const std::lock_guard<std::mutex> lock(mutex_);
  is_closed_ = true;
  // Declared before the lock, so freed after it.
  calls.swap(calls_);
  tasks.swap(tasks_);
}

Home::Home(std::shared_ptr<Outbox> outbox, std::int64_t id)
    : outbox_(outbox.get()), all_{std::move(outbox)}, id_(id) {}

void Home::CloseForMemory() {
  // A connection that is moving meanwhile finds this when it arrives.
  is_to_be_closed_.store(true);
  outbox_.load()->Run([id = id_](Loop& loop) { loop.CloseForMemory(id); });
}

void Home::MoveTo(const std::shared_ptr<Outbox>& outbox) {
  if (std::find(all_.begin(), all_.end(), outbox) == all_.end()) all_.push_back(outbox);
  outbox_.store(outbox.get());
}

}  // namespace recsys::http2
