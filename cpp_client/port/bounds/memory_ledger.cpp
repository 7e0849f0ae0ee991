#include "port/bounds/memory_ledger.h"

#include <cstdlib>
#include <utility>

namespace recsys::http2 {

MemoryLedger::Account::Account(MemoryLedger* ledger, std::function<void()> close)
    : ledger_(ledger), close_(std::move(close)) {
  const std::lock_guard<std::mutex> lock(ledger_->mutex_);
  ledger_->accounts_.insert(this);
  ++ledger_->num_accounts_;
}

MemoryLedger::Account::~Account() {
  Release();
  const std::lock_guard<std::mutex> lock(ledger_->mutex_);
  ledger_->accounts_.erase(this);
  --ledger_->num_accounts_;
}

void MemoryLedger::Account::Closed() {
  const std::lock_guard<std::mutex> lock(ledger_->mutex_);
  if (ledger_->closing_ == this) ledger_->closing_ = nullptr;
}

void MemoryLedger::Account::Release() {
  Add(-num_bytes());
  Publish();
  Closed();
}

bool MemoryLedger::Account::MayOpen() const {
  const std::int64_t most = ledger_->max_bytes_;
  if (most <= 0 || ledger_->total_->load(std::memory_order_relaxed) <= most / 2) return true;
  // All shares together leave a quarter for calls that are already open.
  return num_bytes() <= most / 4 * 3 / ledger_->num_accounts_.load(std::memory_order_relaxed);
}

void MemoryLedger::Account::Add(std::int64_t num_bytes) {
  if (num_bytes == 0) return;
  num_bytes_.store(num_bytes_.load(std::memory_order_relaxed) + num_bytes,
                   std::memory_order_relaxed);
  unpublished_ += num_bytes;
  if (std::abs(unpublished_) > ledger_->max_unpublished_bytes_) Publish();
}

void MemoryLedger::Account::Publish() {
  const std::int64_t num_bytes = std::exchange(unpublished_, 0);
  if (num_bytes == 0) return;
  const std::int64_t total = ledger_->total_->fetch_add(num_bytes, std::memory_order_relaxed);
  const std::int64_t most = ledger_->max_bytes_;
  if (num_bytes > 0 && most > 0 && total + num_bytes > most) ledger_->CloseLargest();
}

void MemoryLedger::CloseLargest() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (closing_ != nullptr) return;
  for (const Account* account : accounts_) {
    if (closing_ == nullptr || account->num_bytes() > closing_->num_bytes()) closing_ = account;
  }
  if (closing_ != nullptr) closing_->close_();
}

}  // namespace recsys::http2
