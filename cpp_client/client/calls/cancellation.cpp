#include "client/calls/cancellation.h"

#include <map>
#include <mutex>
#include <utility>

namespace recsys {

struct Cancellation::Listeners {
  std::mutex mutex;
  bool is_cancelled = false;
  std::uint64_t next = 0;
  std::map<std::uint64_t, std::function<void()>> by_number;
};

Cancellation::Cancellation() : listeners_(std::make_shared<Listeners>()) {}
Cancellation::~Cancellation() = default;

void Cancellation::Cancel() {
  std::map<std::uint64_t, std::function<void()>> told;
  {
    const std::lock_guard<std::mutex> lock(listeners_->mutex);
    listeners_->is_cancelled = true;
    told.swap(listeners_->by_number);
  }
  // Without the lock: a call that ends now removes its own link.
  for (const auto& [number, on_cancel] : told) on_cancel();
}

CancellationLink::CancellationLink(const std::shared_ptr<Cancellation>& cancellation,
                                   std::function<void()> on_cancel) {
  if (cancellation == nullptr) return;
  {
    const std::lock_guard<std::mutex> lock(cancellation->listeners_->mutex);
    if (!cancellation->listeners_->is_cancelled) {
      listeners_ = cancellation->listeners_;
      number_ = listeners_->next++;
      listeners_->by_number.emplace(number_, std::move(on_cancel));
      return;
    }
  }
  on_cancel();
}

CancellationLink::~CancellationLink() {
  if (listeners_ == nullptr) return;
  const std::lock_guard<std::mutex> lock(listeners_->mutex);
  listeners_->by_number.erase(number_);
}

CancellationLink::CancellationLink(CancellationLink&& other) noexcept
    : listeners_(std::move(other.listeners_)), number_(other.number_) {
  other.listeners_ = nullptr;
}

CancellationLink& CancellationLink::operator=(CancellationLink&& other) noexcept {
  std::swap(listeners_, other.listeners_);
  std::swap(number_, other.number_);
  return *this;
}

}  // namespace recsys
